#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/planning/simulate.hpp"
#include "stretto/planning/step_graph.hpp"
#include "stretto/stream.hpp"

// Plans the communication of a training step, after Centauri (Chen et al., ASPLOS 2024). Every collective may be
// partitioned in three dimensions: into other primitives, into stages inside nodes and between nodes, and into chunks.
// The parts are scheduled in three tiers: a collective with its neighbouring computation, a layer, and the model. All
// functions are pure: all ranks make the same plan, and no function computes or communicates. See docs/planner.md.
namespace stretto {

struct StepCluster {
  // A unit of level 0 is a node. Traffic between nodes uses the innermost level whose unit holds all ranks. Unless that
  // level has own_ports, the traffic occupies the links inside nodes, too.
  LinkModel links;
  int ranks = 1;  // number of ranks of the whole job. The ranks of a node share its ports
};

// The stages into which a collective is partitioned.
enum class Form : std::uint8_t {
  whole,     // the collective itself, by the best algorithm of one level
  by_level,  // all_reduce, reduce_scatter, all_gather: stages inside nodes and stages between nodes
};
STRETTO_API const char* name(Form form);

struct Partition {
  Form form = Form::whole;
  int chunks = 1;  // a power of two. Divisible computation next to activations is cut into the same chunks
  auto operator<=>(const Partition&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API std::string to_string(const Partition& partition);

// A set of collectives for which the planner makes one decision: the same collective in every layer, or the gradients of
// all layers, whatever their size.
struct CollectiveKind {
  Payload payload = Payload::activation;
  Phase phase = Phase::forward;
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;  // 0 for gradients
  StepGroup group;
  auto operator<=>(const CollectiveKind&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API CollectiveKind kind_of(const StepNode& node);
STRETTO_API std::string to_string(const CollectiveKind& kind);

// All decisions of a schedule. By default, no collective is partitioned, and each runs as early as possible.
struct StepKnobs {
  bool blocking = false;    // collectives run in program order, without overlap with computation
  bool priorities = false;  // true: activations before parameters before gradients; false: program order
  bool early = false;       // true: compute dgrad before wgrad inside a layer, because communication waits for dgrad
  // The size in bytes of a bucket: the gradients that are summed by one all_reduce. Buckets are filled in program order,
  // as in ShardedParameters. 0: one all_reduce per gradient.
  std::int64_t bucket_bytes = 0;
  std::int64_t first_bucket_bytes = 0;  // size of the first bucket; 0: like the others
  // One flag per bucket, in the order of backward; empty: no bucket is postponed. The gradients of a postponed bucket
  // are reduced and scattered, and each rank updates its share of the parameters. The next forward gathers the
  // parameters, in the order in which it needs them, on the stream of the gradient sums.
  std::vector<bool> postponed;
  int ahead = 1;                                   // number of gathers of parameters begun in addition to the gather in use
  std::map<CollectiveKind, Partition> partitions;  // a kind that is missing is not partitioned
  auto operator<=>(const StepKnobs&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// Seconds for which communication occupies the links inside nodes, and those between nodes.
struct LinkSeconds {
  double inside = 0, between = 0;
};

// One primitive of a partitioned collective. Its ranks are the whole group, the group's ranks on one node (inside), or
// one rank of each node (between).
struct StepStage {
  Collective collective = Collective::all_reduce;
  enum class Level : std::uint8_t { all, inside, between } level = Level::all;
  int ranks = 1;
  Method method;
  std::int64_t elements = 0;                       // elements of the whole vector over these ranks
  DType dtype = DType::f32;                        // on the wire
  double seconds = 0;                              // duration, if no other stage uses the links
  LinkSeconds links;                               // they may end at different times
  std::int64_t bytes_sent = 0, bytes_between = 0;  // by the rank that sends most; bytes_between leave its node
};
STRETTO_API std::string to_string(const StepStage& stage);

struct ScheduledCollective {
  std::string name;
  std::vector<int> nodes;  // indices in the graph: one node, or the nodes of a bucket
  CollectiveKind kind;
  Partition partition;
  std::vector<StepStage> stages;     // of one chunk; they run one after the other
  std::vector<StepStage> postponed;  // of one chunk: the stages that run in the next step's forward
  // The method of the one Communicator call that does all stages of all chunks. For Form::by_level, it is two_level with
  // one piece per chunk. If no single call does all stages, it is `automatic`.
  Method method;
  std::string stream;
  Priority priority = Priority::normal;
  int issued_after = -1;  // the last node of the same step that is computed before the collective starts; -1: none
  int bucket = -1;
  std::int64_t bytes = 0;
};

struct STRETTO_API StepSchedule {
  StepKnobs knobs;
  std::vector<ScheduledCollective> collectives;
  std::vector<int> compute_order;     // indices in the graph
  std::map<int, int> compute_chunks;  // number of chunks by node, for nodes with more than one
  double predicted_seconds = 0;
  double computing_seconds = 0, inside_seconds = 0, between_seconds = 0;  // busy time of each resource
  // The predicted seconds of four simpler schedules. blocking: no partitions and no overlap. unpartitioned: no partitions,
  // each collective as early as possible. buckets: a first bucket of 1 MiB, then buckets of 25 MiB. by_level: the same
  // buckets, and every collective by level where possible, in one chunk. bound: a lower bound for any schedule, which is the
  // longest of three times: the computation, with elementwise updates divided into shares; the bytes that must leave a rank,
  // in groups that lie on one node; and the bytes that must leave a node, in the other groups.
  double blocking_seconds = 0, unpartitioned_seconds = 0, buckets_seconds = 0, by_level_seconds = 0, bound_seconds = 0;
  std::vector<std::string> reasons;  // one line per decision: the alternative, and the time that the decision saves

  std::string choice() const;  // in a few words
  std::string to_string() const;
};

// Returns the best schedule found by hill-climbing from the four simpler schedules above. Its predicted time is never
// longer than theirs. slowdown: how much longer computation takes while a link is busy; 0.1 means 10%. Cost: hundreds of
// simulations of the step, which take seconds in total; this time does not depend on the number of ranks. Throws
// Error(invalid_argument) for a graph with an invalid node, and for groups that do not fit the nodes.
STRETTO_API StepSchedule plan_step(const StepGraph& graph, const StepCluster& cluster, double slowdown = 0);

}  // namespace stretto
