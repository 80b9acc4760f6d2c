#pragma once
#include "planning/step/collective_costs.hpp"
#include "stretto/models/decoder_cost.hpp"
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

// The times of a decoder's parts for a layout's microbatch, from what the layers say that they cost. With `splits`,
// gradients of weights come later (schedules with backward_weight).
class LayerTimes {
 public:
  LayerTimes(const TrainingOptions& layout, bool splits, const TrainingCluster& cluster, const TrainingSystem& system,
             std::int64_t ranks, CollectiveCosts& costs);
  PartTime block() const;
  PartTime embeddings() const { return time_of(cost_.embeddings); }  // in front of the first block
  PartTime head() const;                                             // the last norm, the logits and the loss
  const DecoderCost& cost() const { return cost_; }

 private:
  double seconds(const Product& product) const;
  double exposed(const Exchange& exchange) const;
  PassTime time(const PassCost& pass) const;
  PartTime time_of(const LayerCost& cost) const { return {time(cost.forward), time(cost.input), time(cost.weight)}; }
  PartTime attention(const AttendingHeads& heads) const;
  PartTime scores_in_memory() const;  // attention of a program that writes its scores
  // The bytes and kernels of a block of another program.
  PassCost with(PassCost pass, const BlockTraffic& traffic) const;
  LayerCost of_system(LayerCost block) const;

  const TrainingOptions& layout_;
  const TrainingCluster& cluster_;
  const TrainingSystem& system_;
  std::int64_t ranks_;
  CollectiveCosts& costs_;
  std::int64_t tokens_;
  DecoderCost cost_;
};

// The seconds of a collective of so many elements on the links of a group, by its fastest form.
double collective_seconds(CollectiveCosts& costs, Collective kind, std::int64_t elements, DType dtype,
                          const StepGroup& group, bool narrow_sums);

}  // namespace stretto
