#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/overlap/step_graph.hpp"
#include "stretto/overlap/step_simulation.hpp"
#include "stretto/simulate.hpp"

// Plans the communication of a training step, after Centauri (Chen et al., ASPLOS 2024). Every collective may be
// partitioned in three dimensions: into other primitives, into stages inside nodes and between nodes, and into chunks.
// The parts are scheduled in three tiers: a collective with its neighbours, a layer, the model. All functions are pure
// functions of data: all ranks plan alike, and nothing is run. docs/planner.md explains it in a page.
namespace stretto {

struct StepCluster {
  // A unit of level 0 is a node. For traffic between nodes, the innermost level that joins all ranks counts; it keeps
  // the links inside nodes busy, too, unless that level has own_ports.
  LinkModel links;
  int ranks = 1;  // of the whole job; they share the ports of their nodes
};
// One kind of link between all ranks: alpha_seconds per round and bytes_per_second; local work is free.
STRETTO_API StepCluster simple_cluster(int ranks, double alpha_seconds, double bytes_per_second);

// The primitives by which a collective is done.
enum class Form : std::uint8_t {
  whole,             // the collective itself, by the best algorithm of one level
  scatter_gather,    // all_reduce: reduce_scatter, all_gather
  reduce_broadcast,  // all_reduce: reduce, broadcast
  by_level,          // all_reduce, reduce_scatter, all_gather: stages inside nodes and stages between nodes
};
STRETTO_API const char* name(Form form);

struct Partition {
  Form form = Form::whole;
  int chunks = 1;  // a power of two; divisible computation next to activations is cut into the same chunks
  auto operator<=>(const Partition&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API std::string to_string(const Partition& partition);

// Collectives that share one decision: the same collective in every layer; all gradients together, whatever their size.
struct CollectiveKind {
  Payload payload = Payload::activation;
  Phase phase = Phase::forward;
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;  // 0 for gradients
  StepGroup group;
  bool measured = false;
  auto operator<=>(const CollectiveKind&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API CollectiveKind kind_of(const StepNode& node);
STRETTO_API std::string to_string(const CollectiveKind& kind);

// All decisions. The defaults partition nothing: each collective runs as a whole, as early as possible.
struct StepKnobs {
  bool blocking = false;    // collectives run in program order, and nothing is computed meanwhile
  bool priorities = false;  // activations before parameters before gradients; false: program order
  bool early = false;       // inside a layer, compute first what communication waits for: dgrad before wgrad
  // Bytes of gradients in one all_reduce, filled in program order as GradientBuckets does. 0: each gradient by itself.
  std::int64_t bucket_bytes = 0;
  std::int64_t first_bucket_bytes = 0;  // of the first bucket; 0: like the others
  // One flag per bucket, in the order of backward; empty: no bucket is postponed. A postponed bucket is reduced and
  // scattered, updated by shares, and gathered during the next forward, in the order in which forward needs it and on
  // the stream of the sums (PostponedGather).
  std::vector<bool> postponed;
  int ahead = 1;                                       // number of gathers of parameters begun beyond the one in use
  std::map<CollectiveKind, Partition> partitions;      // kinds that are missing are not partitioned
  auto operator<=>(const StepKnobs&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// One primitive over a group, or over the group's ranks on one node or between nodes.
struct StepStage {
  Collective collective = Collective::all_reduce;
  enum class Level : std::uint8_t { all, inside, between } level = Level::all;
  int ranks = 1;
  Method method;
  std::int64_t elements = 0;                       // of the whole vector among these ranks
  DType dtype = DType::f32;                        // on the wire
  double seconds = 0;                              // if nothing else uses the links
  StepTask::Stage links;                           // seconds for which it occupies each link
  std::int64_t bytes_sent = 0, bytes_between = 0;  // by the rank that sends most; the part of it that leaves its node
};
STRETTO_API std::string to_string(const StepStage& stage);

struct ScheduledCollective {
  std::string name;
  std::vector<int> nodes;  // indices in the graph: one, or those of a bucket
  CollectiveKind kind;
  Partition partition;
  std::vector<StepStage> stages;     // of one chunk, one after the other
  std::vector<StepStage> postponed;  // of one chunk, the stages in the next step's forward
  // The same as one call of a communicator, if there is such a call: two_level with as many pieces as chunks.
  Method method;
  std::string stream;
  Priority priority = Priority::normal;
  int issued_after = -1;  // the last node of the same step that is computed before it; -1: none
  int bucket = -1;
  std::int64_t bytes = 0;
};

struct STRETTO_API StepSchedule {
  StepKnobs knobs;
  std::vector<ScheduledCollective> collectives;
  std::vector<int> compute_order;     // indices in the graph
  std::map<int, int> compute_chunks;  // by node, if more than one
  std::vector<StepTask> tasks;        // as simulated
  double predicted_seconds = 0;
  double computing_seconds = 0, inside_seconds = 0, between_seconds = 0;  // for which each resource is busy
  // plan_step() only. Predicted seconds of simpler schedules: blocking, without partitions; without partitions, each
  // collective as early as possible; buckets of 25 MiB after a first one of 1 MiB; those buckets with every possible
  // collective by level, in one chunk. bound_seconds: step_bound().
  double blocking_seconds = 0, unpartitioned_seconds = 0, buckets_seconds = 0, by_level_seconds = 0, bound_seconds = 0;
  std::vector<std::string> reasons;  // one line per decision: the alternative, and the time gained

  std::string choice() const;  // in a few words
  std::string to_string() const;
};

// Makes and times the schedule that the knobs describe. Throws Error(invalid_argument) for groups that do not fit the
// nodes, forms that a collective does not have, more gathers ahead than may be live, or a wrong number of bucket flags.
STRETTO_API StepSchedule schedule_step(const StepGraph& graph, const StepCluster& cluster, const StepKnobs& knobs,
                                       double slowdown = 0);

struct PlannerOptions {
  double slowdown = 0;  // StepSimulationOptions::slowdown
  int most_chunks = 16;
  int most_postponed = 1 << 20;  // 0 if the program cannot gather parameters after the update
  bool may_chunk_compute = true;
  bool may_reorder_compute = true;
};
// The best schedule found by hill-climbing from the four simpler schedules above; never slower than any of them. Cost:
// hundreds of simulations of the step. That is seconds for 1,024 ranks; the time does not depend on the number of
// ranks.
STRETTO_API StepSchedule plan_step(const StepGraph& graph, const StepCluster& cluster, const PlannerOptions& options = {});

// A lower bound for any schedule, in seconds: the largest of the time for computation, with elementwise updates divided
// into shares, and the times for the bytes that must leave a node, or a rank if a group lies on one node.
STRETTO_API double step_bound(const StepGraph& graph, const StepCluster& cluster);

}  // namespace stretto
