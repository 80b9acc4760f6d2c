#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/plan.hpp"

// One training step as data: what is computed, what is communicated, and what waits for what. All ranks do the same (SPMD),
// so the graph is of one of them. The planner (planner.hpp) makes a schedule of it.
namespace stretto {

enum class Phase : std::uint8_t { forward, backward, update };
// What a collective carries, which says who waits for it: the next computation (activation); the computation of a layer,
// which leaves time to fetch its weights earlier (parameter); nobody before the update (gradient).
enum class Payload : std::uint8_t { activation, parameter, gradient };
STRETTO_API const char* name(Phase phase);
STRETTO_API const char* name(Payload payload);

// Ranks that are so many apart: {8, 1} are eight neighbours, {4, 8} every eighth of 32. Rank r of a job of D x T lies at
// r / T in data and r % T in tensor parallelism; its groups are {D, T} and {T, 1}. Nodes are those of the cluster.
struct StepGroup {
  int size = 1;
  int stride = 1;
  auto operator<=>(const StepGroup&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

// On a node of the same step, or of the one before: steady state, the graph repeats every step. In the first step there is
// nothing to wait for.
struct StepDependency {
  int node = 0;
  int steps_back = 0;                                       // 0 or 1
  auto operator<=>(const StepDependency&) const = default;  // NOLINT(modernize-use-nullptr): none is here
};

struct StepCollective {
  Collective kind = Collective::all_reduce;
  Payload payload = Payload::activation;
  std::int64_t elements = 0;  // of the whole vector, also where counts are of shares
  DType dtype = DType::f32;
  StepGroup group;
  // Of an all_reduce of gradients that is taken apart: as what the parameters are gathered after the update. None: dtype.
  std::optional<DType> gathers_as = {};
  // Instead of what the cluster's links say. Parts of it take their share: of the bytes, and each of reduce_scatter and
  // all_gather half of an all_reduce. It then goes by the links inside the node, as one method.
  std::optional<double> measured_seconds = {};
};

struct StepNode {
  std::string name;
  int layer = 0;
  Phase phase = Phase::forward;
  std::vector<StepDependency> after;
  // Computation, where there is no collective. A divisible one can be done in chunks of rows, together with activations that
  // it makes or takes; each chunk costs so much more. An elementwise update of a parameter needs no other's gradient: it can
  // be done by shares, each rank of the gradient's group a part, in as much less time.
  double seconds = 0;
  bool divisible = false;
  double chunk_seconds = 0;
  bool elementwise = false;
  std::optional<StepCollective> collective = {};
};

// In the order in which a rank's program says them: a dependency within the step is on an earlier node. Computation begins
// when what stands before it is done; a collective that waits for nothing, when the step before has computed all. One
// for which nobody waits is over before the next step computes.
struct STRETTO_API StepGraph {
  std::vector<StepNode> nodes;
  // So many gathers of parameters (Payload::parameter) may be begun whose last use is not over: a bound on memory. What is
  // held over the first use of a later gather does not count.
  int most_live_gathers = 2;

  int add(StepNode node);  // its index
  double compute_seconds() const;
};

// Throws Error(invalid_argument) naming the node that cannot be meant.
STRETTO_API void check(const StepGraph& graph);

// ---- The usual steps of a transformer

// What one rank computes of a layer, measured or estimated, without communication.
struct LayerSeconds {
  double forward = 0, backward = 0, update = 0;
};
struct TransformerStep {
  std::vector<LayerSeconds> layers;
  std::vector<std::int64_t> parameters;  // a layer's, of one rank of a tensor-parallel group; as many as layers
  StepGroup data;                        // over which gradients are summed; of 1: none
  StepGroup tensor;                      // over which layers are cut; of 1: not
  std::int64_t activations = 0;  // elements of a layer's input, of a whole tensor-parallel group: batch x sequence x hidden
  DType parameter_dtype = DType::bf16;  // of gathers
  DType gradient_dtype = DType::f32;
  DType activation_dtype = DType::bf16;
  double attention_share = 0.1;  // of a layer's time that is attention itself, no product with a weight
  double chunk_seconds = 5e-6;   // what a further chunk of a product costs: a launch, and a less full machine
  // Into how many equal parts a layer's backward falls whose gradients are ready one after the other, so that buckets may be
  // smaller than a layer. With tensor parallelism these are the four products, if it is more than one. Not of ZeRO-3.
  int backward_parts = 1;
  // Updates begin when all gradients are summed (GradientBuckets::finish()), and go from the first layer to the last, as
  // forward needs them; else each as soon as its own are, in the order of backward.
  bool update_behind_all = false;
  int most_live_gathers = 2;
};

// Each layer's gradients are summed when its backward is over, and its parameters updated at the end of the step. With
// tensor parallelism in sequences (Korthikanti et al. 2022): all_gather, product, product, reduce_scatter, twice a layer
// forward and twice backward, where the products with respect to weights wait for nothing else. The layer's seconds go to
// them as its 12 hidden^2 weights do: 3 qkv, 1 projection, 4 and 4.
STRETTO_API StepGraph data_parallel_step(const TransformerStep& step);
// The same without data parallelism; throws where step.data is not of 1.
STRETTO_API StepGraph tensor_parallel_step(const TransformerStep& step);
// ZeRO-3 (Rajbhandari et al. 2020): parameters are gathered before forward and, but for the last layer's, again before
// backward; gradients are reduced and scattered; each rank updates its share (layers[i].update is of that share).
STRETTO_API StepGraph zero3_step(const TransformerStep& step);

}  // namespace stretto
