#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

// One training step as data: its computation, its communication, and their dependencies. All ranks do the same (SPMD),
// so the graph is that of one rank. The planner (planner.hpp) makes a schedule of it.
namespace stretto {

enum class Phase : std::uint8_t { forward, backward, update };
// The data of a collective, which decides what waits for it. activation: the next computation. parameter: the
// computation of a layer, so there is time to gather its weights earlier. gradient: nothing before the update.
enum class Payload : std::uint8_t { activation, parameter, gradient };
STRETTO_API const char* name(Phase phase);
STRETTO_API const char* name(Payload payload);

// `size` ranks at distances of `stride`: {8, 1} are eight neighbours, {4, 8} every eighth of 32. In a job of D x T
// ranks, rank r has the place r / T in data and r % T in tensor parallelism; its groups are {D, T} and {T, 1}. Nodes
// are those of the cluster.
struct StepGroup {
  int size = 1;
  int stride = 1;
  auto operator<=>(const StepGroup&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// A dependency on a node of the same step, or of the step before: the graph is repeated every step (steady state). In
// the first step, dependencies on the step before are met.
struct StepDependency {
  int node = 0;
  int steps_back = 0;                                       // 0 or 1
  auto operator<=>(const StepDependency&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

struct StepCollective {
  Collective kind = Collective::all_reduce;
  Payload payload = Payload::activation;
  std::int64_t elements = 0;  // of the whole vector, even if the collective counts shares
  DType dtype = DType::f32;
  StepGroup group;
  // For an all_reduce of gradients that may be split: the type in which parameters are gathered after the update. If it
  // is not set: dtype.
  std::optional<DType> gathers_as = {};
  // Replaces the time that follows from the cluster's links. The collective then uses the links inside the node, as one
  // method. A part of it takes a part of the time: by its bytes; and reduce_scatter and all_gather half of an
  // all_reduce each.
  std::optional<double> measured_seconds = {};
};

struct StepNode {
  std::string name;
  int layer = 0;
  Phase phase = Phase::forward;
  std::vector<StepDependency> after;
  // The computation of a node without a collective. divisible: it can be done in chunks of rows, together with the
  // activations that it makes or uses; each chunk adds chunk_seconds. elementwise: an update that needs no other
  // parameter's gradient, so each rank of the gradient's group can do a share of it in a fraction of the time.
  double seconds = 0;
  bool divisible = false;
  double chunk_seconds = 0;
  bool elementwise = false;
  std::optional<StepCollective> collective = {};
};

// Nodes are in the order of a rank's program: a dependency within the step is on an earlier node. A computation begins
// when the one before it is done and its dependencies are met. A collective without dependencies begins when the step
// before has computed everything. A collective on which nothing depends is over before the next step computes.
struct STRETTO_API StepGraph {
  std::vector<StepNode> nodes;
  // Limits memory: the number of gathers of parameters (Payload::parameter) that may have begun and whose last use is
  // not over. A gather does not count if it is held anyway beyond the first use of a later one.
  int most_live_gathers = 2;

  int add(StepNode node);  // returns the node's index
  double compute_seconds() const;
};

// Throws Error(invalid_argument) naming a node that is not possible.
STRETTO_API void check(const StepGraph& graph);

// ---- The usual steps of a transformer

// One rank's computation of a layer in seconds, measured or estimated, without communication.
struct LayerSeconds {
  double forward = 0, backward = 0, update = 0;
};
struct TransformerStep {
  std::vector<LayerSeconds> layers;
  std::vector<std::int64_t> parameters;  // per layer, those of one rank of a tensor-parallel group; as many as layers
  StepGroup data;                        // the group over which gradients are summed; of size 1: no sums
  StepGroup tensor;                      // the group over which layers are divided; of size 1: not divided
  std::int64_t activations = 0;  // elements of a layer's input in a whole tensor-parallel group: batch x sequence x hidden
  DType parameter_dtype = DType::bf16;  // of gathers
  DType gradient_dtype = DType::f32;
  DType activation_dtype = DType::bf16;
  double attention_share = 0.1;  // the fraction of a layer's time in attention itself, without products with weights
  double chunk_seconds = 5e-6;   // cost of each chunk of a product: a launch, and a less full machine
  // The number of equal parts of a layer's backward whose gradients are ready one after the other, so that buckets may
  // be smaller than a layer. With tensor parallelism, any number above 1 means the four products. Not used by ZeRO-3.
  int backward_parts = 1;
  // true: updates begin when all gradients are summed (GradientBuckets::finish()), and run from the first layer to the
  // last, as forward needs them. false: each begins when its own gradients are summed, in the order of backward.
  bool update_behind_all = false;
  int most_live_gathers = 2;
};

// Each layer's gradients are summed when its backward is over, and its parameters are updated at the end of the step.
// With tensor parallelism, sequences are divided too (Korthikanti et al. 2022): a layer does all_gather, product,
// product, reduce_scatter twice in forward and twice in backward; products with respect to weights wait for nothing
// else. The layer's seconds are divided among the products in proportion to their weights, of 12 hidden^2 in all: qkv
// 3, projection 1, MLP 4 and 4.
STRETTO_API StepGraph data_parallel_step(const TransformerStep& step);
// Like data_parallel_step, without data parallelism; throws if step.data.size is not 1.
STRETTO_API StepGraph tensor_parallel_step(const TransformerStep& step);
// ZeRO-3 (Rajbhandari et al. 2020): parameters are gathered before forward and again before backward (except for the
// last layer's), gradients are reduced and scattered, and each rank updates its share. layers[i].update is the time for
// that share.
STRETTO_API StepGraph zero3_step(const TransformerStep& step);

}  // namespace stretto
