#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "stretto/layers/parameter_use.hpp"

namespace stretto {

// The gradients of weights that the backward of some layers has left for later, with the tensors that they need: the second
// half of a backward in zero-bubble pipelines (Qi et al. 2023).
//
//   WeightGradients later;                   // one for each microbatch
//   block.backward(dx, saved, use, &later);  // dx, but no gradients of weights
//   ... other microbatches ...
//   later.compute(use);                      // adds the gradients, and frees the tensors
//
// Gradients have the same bits as without the halves if microbatches are computed in the same order. The layers' headers say
// what is kept until then. From ZeroStage::gradients on, a unit that also holds weights of a norm, whose gradients are never
// left for later, keeps its whole gradients until then, too. The parameters must outlive the object. Only the thread that
// computes may use it.
class STRETTO_API WeightGradients {
 public:
  // `compute` adds to the gradients of `used`, and owns the tensors that it needs. `prepare`, which may be empty,
  // starts communication that `compute` waits for: compute() calls it an entry ahead. Does nothing if none is trainable.
  void add(const UsedParameters& used, std::function<void()> compute, std::function<void()> prepare = {});
  // Computes the entries in the order of add(), each in a use for Pass::backward_weight, and frees the tensors of each as
  // soon as it has been computed. The object is empty then, and can be used again.
  void compute(ParameterUse& use);
  bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    const UsedParameters* used;
    std::function<void()> compute, prepare;
  };
  std::vector<Entry> entries_;
};

// For layers: what they use their parameters for in backward, and the part of it that adds gradients, in that use or later.
inline Pass backward_pass(const WeightGradients* later) { return later == nullptr ? Pass::backward : Pass::backward_input; }
template <class Compute>
void add_now_or(WeightGradients* later, const UsedParameters& used, Compute compute) {
  if (later == nullptr) {
    if (used.any_trainable()) compute();
  } else {
    later->add(used, std::move(compute));
  }
}

}  // namespace stretto
