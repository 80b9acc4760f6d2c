#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/overlap/step_graph.hpp"
#include "stretto/overlap/step_simulation.hpp"
#include "stretto/simulate.hpp"

// Plans the communication of a training step, after Centauri (Chen et al., ASPLOS 2024): every collective may be partitioned
// in three dimensions (other primitives; inside nodes and between them; chunks), and the parts are scheduled in three tiers
// (a collective with its neighbours, a layer, the model). Pure functions of data: all ranks plan alike, and nothing runs.
// docs/planner.md explains it in a page.
namespace stretto {

struct StepCluster {
  // A unit of level 0 is a node; beyond it, the innermost level that joins all ranks counts. Unless that has own_ports, what
  // goes between nodes keeps the links inside busy, too.
  LinkModel links;
  int ranks = 1;  // of the whole job, which share the ports of their nodes
};
// One kind of link between all ranks: alpha seconds a round, so many bytes a second; local work is free.
STRETTO_API StepCluster simple_cluster(int ranks, double alpha_seconds, double bytes_per_second);

// As what a collective is done.
enum class Form : std::uint8_t {
  whole,             // as it is, by the best algorithm of one level
  scatter_gather,    // all_reduce: reduce_scatter, all_gather
  reduce_broadcast,  // all_reduce: reduce, broadcast
  by_level,          // all_reduce, reduce_scatter, all_gather: inside the nodes and between them, one stage after the other
};
STRETTO_API const char* name(Form form);

struct Partition {
  Form form = Form::whole;
  int chunks = 1;  // a power of two; activations are cut along with divisible computation beside them
  auto operator<=>(const Partition&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API std::string to_string(const Partition& partition);

// Collectives that are planned alike: the same one in every layer; all gradients together, whatever their size.
struct CollectiveKind {
  Payload payload = Payload::activation;
  Phase phase = Phase::forward;
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;  // of gradients 0
  StepGroup group;
  bool measured = false;
  auto operator<=>(const CollectiveKind&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};
STRETTO_API CollectiveKind kind_of(const StepNode& node);
STRETTO_API std::string to_string(const CollectiveKind& kind);

// Everything that is decided. The defaults partition nothing: each collective as a whole, as early as it can be.
struct StepKnobs {
  bool blocking = false;    // each collective where the program says it, and nothing computes meanwhile
  bool priorities = false;  // activations before parameters before gradients; else in program order
  bool early = false;       // inside a layer, what communication waits for is computed first: dgrad before wgrad
  // Gradients of one all_reduce: as GradientBuckets fills them, in program order. 0: each gradient by itself.
  std::int64_t bucket_bytes = 0;
  std::int64_t first_bucket_bytes = 0;  // of the first; 0: like the others
  // By bucket, in the order of backward; empty: none. What is postponed is reduced and scattered, updated by shares, and
  // gathered behind the next forward, in the order in which that needs it and on the stream of the sums (PostponedGather).
  std::vector<bool> postponed;
  int ahead = 1;                                       // gathers of parameters begun beyond the one in use
  std::map<CollectiveKind, Partition> partitions;      // what is not in it is whole
  auto operator<=>(const StepKnobs&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// One primitive over a group, or over its ranks on a node or between nodes.
struct StepStage {
  Collective collective = Collective::all_reduce;
  enum class Level : std::uint8_t { all, inside, between } level = Level::all;
  int ranks = 1;
  Method method;
  std::int64_t elements = 0;                       // of the whole vector among these ranks
  DType dtype = DType::f32;                        // on the wire
  double seconds = 0;                              // alone
  StepTask::Stage links;                           // which it occupies for how long
  std::int64_t bytes_sent = 0, bytes_between = 0;  // by the rank that sends most; what of it leaves its node
};
STRETTO_API std::string to_string(const StepStage& stage);

struct ScheduledCollective {
  std::string name;
  std::vector<int> nodes;  // of the graph: one, or a bucket's
  CollectiveKind kind;
  Partition partition;
  std::vector<StepStage> stages;     // of one chunk, one after the other
  std::vector<StepStage> postponed;  // of one chunk, what comes in the next step's forward
  // The same as one call of a communicator, where it is one: two_level with as many pieces as chunks.
  Method method;
  std::string stream;
  Priority priority = Priority::normal;
  int issued_after = -1;  // the last node of the graph that is computed before it, of the same step; -1: none
  int bucket = -1;
  std::int64_t bytes = 0;
};

struct STRETTO_API StepSchedule {
  StepKnobs knobs;
  std::vector<ScheduledCollective> collectives;
  std::vector<int> compute_order;     // nodes of the graph
  std::map<int, int> compute_chunks;  // by node, where more than one
  std::vector<StepTask> tasks;        // as simulated
  double predicted_seconds = 0;
  double computing_seconds = 0, inside_seconds = 0, between_seconds = 0;  // how long each is busy
  // plan_step() only: the same of what partitions nothing and blocks, or is as early as it can be; of 25 MiB buckets with a
  // first one of 1 MiB; of those with every collective by level that can be, in one chunk; and what no schedule can fall
  // below.
  double blocking_seconds = 0, unpartitioned_seconds = 0, buckets_seconds = 0, by_level_seconds = 0, bound_seconds = 0;
  std::vector<std::string> reasons;  // a line a decision: what it was compared with, and what it wins

  std::string choice() const;  // in a few words
  std::string to_string() const;
};

// The schedule that these knobs mean, and what it takes. Throws Error(invalid_argument) for what cannot be done: groups that
// do not fit the nodes, forms that a collective has not, more gathers ahead than may be live, flags of other buckets than
// there are.
STRETTO_API StepSchedule schedule_step(const StepGraph& graph, const StepCluster& cluster, const StepKnobs& knobs,
                                       double slowdown = 0);

struct PlannerOptions {
  double slowdown = 0;  // StepSimulationOptions
  int most_chunks = 16;
  int most_postponed = 1 << 20;  // 0 where the program cannot gather parameters after the update
  bool may_chunk_compute = true;
  bool may_reorder_compute = true;
};
// The best that a search by hill-climbing from those four finds; never worse than any of them. Costs hundreds of
// simulations of the step; seconds for 1,024 ranks, whose number it does not depend on.
STRETTO_API StepSchedule plan_step(const StepGraph& graph, const StepCluster& cluster, const PlannerOptions& options = {});

// No schedule is faster: computing, with elementwise updates by shares, and the bytes that have to leave a node, or a rank
// where a group lies on one node.
STRETTO_API double step_bound(const StepGraph& graph, const StepCluster& cluster);

}  // namespace stretto
