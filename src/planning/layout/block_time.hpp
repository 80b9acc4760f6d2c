#pragma once
#include "planning/step/collective_costs.hpp"
#include "stretto/models/training_options.hpp"
#include "stretto/planning/training_cluster.hpp"

namespace stretto {

// Seconds of one microbatch on one rank: of computation, and of communication that nothing hides.
struct PassTime {
  double computing = 0, tensor = 0, ring = 0, ulysses = 0;
  double all() const { return computing + tensor + ring + ulysses; }
};
constexpr PassTime operator+(const PassTime& a, const PassTime& b) {
  return {a.computing + b.computing, a.tensor + b.tensor, a.ring + b.ring, a.ulysses + b.ulysses};
}
constexpr PassTime operator*(double factor, const PassTime& time) {
  return {factor * time.computing, factor * time.tensor, factor * time.ring, factor * time.ulysses};
}

// Forward, backward for activations (with what is computed again), and backward for weights.
struct PartTime {
  PassTime forward, input, weight;
  PassTime all() const { return forward + input + weight; }
};
constexpr PartTime operator+(const PartTime& a, const PartTime& b) {
  return {a.forward + b.forward, a.input + b.input, a.weight + b.weight};
}
constexpr PartTime operator*(double factor, const PartTime& time) {
  return {factor * time.forward, factor * time.input, factor * time.weight};
}

// The times of what a GPT consists of, for a layout's microbatch. With `splits`, gradients of weights come later (schedules
// with backward_weight).
class BlockTimes {
 public:
  BlockTimes(const TrainingOptions& layout, bool splits, const TrainingCluster& cluster, const TrainingSystem& system,
             std::int64_t ranks, CollectiveCosts& costs);
  PartTime block() const;
  PartTime embeddings() const;  // in front of the first block
  PartTime head() const;        // the last norm, the logits and the loss

 private:
  // The products of a linear layer: forward, and backward for its input and its weight.
  struct Products {
    double forward, input, weight;
  };
  Products linear(double in, double out) const;  // of this rank
  double pass(const BlockTraffic& traffic) const;
  PartTime attention() const;
  void add_exchanges(PartTime& block, PassTime& last_projection) const;
  // What a chunked exchange beside a product leaves exposed.
  double beside(double exchange, double product) const;
  double behind(double exchange, double product) const;  // what one beside the weight gradient's product leaves exposed
  BlockTraffic forward_traffic() const;
  BlockTraffic backward_traffic() const;
  BlockTraffic weight_traffic() const;
  BlockTraffic again_traffic() const;  // with Recompute::selective

  const TrainingOptions& layout_;
  bool splits_;
  const TrainingCluster& cluster_;
  const TrainingSystem& system_;
  std::int64_t ranks_;
  TensorParallel tensor_;
  DType dtype_;
  double width_;  // bytes of an element
  double tokens_, own_tokens_, hidden_, ranks_tensor_;
  double packed_, mlp_;  // widths of the residual in that of packed q, k and v, and in that of the MLP
  Products qkv_, projection_, up_, down_;
  double all_reduce_ = 0, gather_ = 0, scatter_ = 0;  // seconds of an exchange of a tensor of the residual's shape
};

// The seconds of a collective of so many elements on the links of a group, by its fastest form.
double collective_seconds(CollectiveCosts& costs, Collective kind, std::int64_t elements, DType dtype,
                          const StepGroup& group, bool narrow_sums);

}  // namespace stretto
