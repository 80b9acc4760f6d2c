#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

// One training step as data: its computation, its communication, and their dependencies. All ranks do the same (SPMD),
// so the graph describes one rank. The planner (planner.hpp) makes a schedule from the graph.
namespace stretto {

enum class Phase : std::uint8_t { forward, backward, update };
// The kind of data in a collective. It determines which computation waits for the collective. activation: the next
// computation waits. parameter: the computation of a layer waits, so the layer's weights can be gathered earlier.
// gradient: no computation before the update waits.
enum class Payload : std::uint8_t { activation, parameter, gradient };
STRETTO_API const char* name(Phase phase);
STRETTO_API const char* name(Payload payload);

// A group of `size` ranks whose numbers differ by `stride`: {8, 1} is a group of eight consecutive ranks, {4, 8} is
// every eighth of 32 ranks. In a job of D x T ranks, rank r has index r / T in data parallelism and index r % T in
// tensor parallelism; its groups are {D, T} and {T, 1}. The StepCluster (planner.hpp) gives the nodes of the ranks.
struct StepGroup {
  int size = 1;
  int stride = 1;
  auto operator<=>(const StepGroup&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// A dependency on a node of the same step or of the previous step: the graph is repeated every step (steady state). In
// the first step, dependencies on the previous step are already met.
struct StepDependency {
  int node = 0;
  int steps_back = 0;                                       // 0 or 1
  auto operator<=>(const StepDependency&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

struct StepCollective {
  Collective kind = Collective::all_reduce;
  Payload payload = Payload::activation;
  std::int64_t elements = 0;  // of the whole vector, even if counts_shares(kind)
  DType dtype = DType::f32;
  StepGroup group;
  // For an all_reduce of gradients that the planner may split into a reduce_scatter and a gather of updated parameters:
  // the type of the gathered parameters. Default: dtype.
  std::optional<DType> gathers_as = {};
};

struct StepNode {
  std::string name;
  int layer = 0;
  Phase phase = Phase::forward;
  std::vector<StepDependency> after;
  // The computation of a node without a collective. divisible: the computation can be cut into chunks of rows, together
  // with the activations that it makes or uses; each chunk adds chunk_seconds. elementwise: the computation is an update
  // that needs no other parameter's gradient, so each rank of the gradient's group can do a share of the update in a
  // fraction of the time.
  double seconds = 0;
  bool divisible = false;
  double chunk_seconds = 0;
  bool elementwise = false;
  std::optional<StepCollective> collective = {};
};

// Nodes are in program order: a dependency within the step is on an earlier node. A computation begins when the previous
// computation is done and its own dependencies are met. A collective without dependencies begins when all computation of
// the previous step is done. A collective on which no node depends ends before the computation of the next step begins.
struct STRETTO_API StepGraph {
  std::vector<StepNode> nodes;
  // Limits memory. A gather of parameters (Payload::parameter) is live from its beginning to the end of its last use;
  // most_live_gathers is the largest number of live gathers. A gather whose last use comes after the first use of a
  // later gather does not count.
  int most_live_gathers = 2;

  int add(StepNode node);  // returns the node's index
};

// ---- The usual steps of a transformer

// The seconds of one rank's computation in a layer, measured or estimated, without communication.
struct LayerSeconds {
  double forward = 0, backward = 0, update = 0;
};
struct TransformerStep {
  std::vector<LayerSeconds> layers;
  std::vector<std::int64_t> parameters;  // number of parameters of each layer on one rank; one entry per layer
  StepGroup data;                        // the group over which gradients are summed; size 1: no sums
  StepGroup tensor;                      // the group over which layers are divided; size 1: not divided
  std::int64_t activations = 0;          // elements of a layer's whole input, undivided: batch x sequence x hidden
  DType parameter_dtype = DType::bf16;   // type in which parameters are gathered
  DType gradient_dtype = DType::f32;
  DType activation_dtype = DType::bf16;
  double attention_share = 0.1;  // the part of a layer's time spent in attention itself, without products with weights
  double chunk_seconds = 5e-6;   // cost of each chunk of a product: its launch, and the lower utilization
  // The number of equal parts into which a layer's backward is divided. The gradients of each part are ready when the
  // part is done, so that buckets may be smaller than a layer. With tensor parallelism, any number above 1 means the
  // layer's four products. zero3_step() ignores backward_parts.
  int backward_parts = 1;
  int most_live_gathers = 2;
};

// Makes the graph of a data-parallel step. Each layer's gradients are summed when its backward is over, and its
// parameters are updated at the end of the step. With tensor parallelism, sequences are divided too (Korthikanti et al.
// 2022): in forward and again in backward, a layer performs these four operations twice: all_gather, product, product,
// reduce_scatter. A product that makes a weight's gradient waits only for its inputs, and no exchange of activations
// waits for it. The layer's weights have 12 hidden^2 elements: qkv has 3 hidden^2, the projection 1, and the two
// products of the MLP 4 each. The layer's seconds are divided among its four products in this proportion.
STRETTO_API StepGraph data_parallel_step(const TransformerStep& step);
// Makes the graph of a ZeRO-3 step (Rajbhandari et al. 2020). Each layer's parameters are gathered before its forward
// and, except for the last layer, again before its backward. Gradients are reduced and scattered, and each rank updates
// its share; layers[i].update is the time for that share.
STRETTO_API StepGraph zero3_step(const TransformerStep& step);

}  // namespace stretto
