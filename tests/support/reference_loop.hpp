#pragma once
#include <cstddef>
#include <deque>
#include <utility>

namespace stretto {

// Training whose gradients are `delay` updates old, in its plainest form: one process, one step after the other, nothing in
// flight.
//
//   W(t+1) = U(W(t), g(W(t-delay))) for t = 0, ..., steps - 1, with W(t) = W(0) for t < 0
//
// Offloaded optimizers, asynchronous pipelines, sums that arrive late and parameter servers must have the bits of W(steps).
//
//   gradient(t, W) returns the gradient of batch t at the weights W.
//   update(t, W, g) returns the weights after update number t, and keeps the optimizer's state, if there is one.
//
// Weights are a value: a copy of them does not change when another one does, as copies of a Tensor would. Each gradient is
// used before the next one is computed, so that a Trainer can keep its own: gradient() gives it the weights W and computes,
// update() gives it the weights of the argument and updates.
template <class Weights, class Gradient, class Update>
Weights delayed_updates(Weights initial, std::size_t delay, int steps, Gradient gradient, Update update) {
  std::deque<Weights> weights;  // W(t-delay), or W(0), to W(t)
  weights.push_back(std::move(initial));
  for (int t = 0; t < steps; ++t) {
    auto late = gradient(t, std::as_const(weights.front()));
    weights.push_back(update(t, std::as_const(weights.back()), std::move(late)));
    if (weights.size() > delay + 1) weights.pop_front();
  }
  return std::move(weights.back());
}

}  // namespace stretto
