#pragma once
#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "stretto/server.hpp"
#include "support/reference_loop.hpp"

// Training of a table by any gradients, and the oracle of it.
namespace stretto {

constexpr std::int64_t elements = 1000;
constexpr kernels::SGDStep sgd_step{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01};
constexpr kernels::AdamWStep adamw_step{.lr = 0.01};

inline void initial(const Tensor& values, std::int64_t first) {
  for (std::int64_t i = 0; i < values.size(); ++i) values.set(i, static_cast<double>((first + i) % 11 - 5) / 8);
}

// A gradient of any kind: it depends on the weights, the worker and the step.
inline Tensor gradient_of(const Tensor& weights, int worker, int step) {
  Tensor gradient({weights.size()}, weights.dtype());
  for (std::int64_t i = 0; i < weights.size(); ++i) {
    gradient.set(i,
                 weights.at(i) * (0.5 + 0.1 * worker) + 0.01 * static_cast<double>((i * 7 + step * 13 + worker) % 17 - 8));
  }
  return gradient;
}

struct Kind {
  const char* name;
  ServerFunction (*function)(int workers);
};
inline const Kind kinds[] = {{"sgd",
                              [](int workers) {
                                kernels::SGDStep step = sgd_step;
                                step.gradient_scale = 1.0 / workers;
                                return server_functions::sgd(step);
                              }},
                             {"adamw", [](int workers) {
                                kernels::AdamWStep step = adamw_step;
                                step.gradient_scale = 1.0 / workers;
                                return server_functions::adamw(step);
                              }}};

// The oracle: one process, gradients of all workers at weights that are `delay` updates old, added in the order of workers.
inline Tensor reference(const Kind& kind, int workers, int delay, int steps) {
  const Tensor start({elements}, DType::f32);
  initial(start, 0);
  const ServerFunction function = kind.function(workers);
  std::vector<Tensor> state;
  for (int slot = 0; slot < function.slots; ++slot) state.push_back(Tensor::zeros({elements}, DType::f32));
  return delayed_updates(
      start, static_cast<std::size_t>(delay), steps,
      [&](int step, const Tensor& weights) {
        Tensor sum = gradient_of(weights, 0, step);
        for (int worker = 1; worker < workers; ++worker) kernels::add(sum, gradient_of(weights, worker, step), sum);
        return sum;
      },
      [&](int step, const Tensor& weights, const Tensor& sum) {
        Tensor next = weights.clone();
        function.update({.values = next, .state = state, .pushed = sum, .updates = step});
        return next;
      });
}

inline testing::Matcher<const Tensor&> has_the_bits_of(const Tensor& expected) {
  return testing::Truly([expected](const Tensor& found) {
    for (std::int64_t i = 0; i < expected.size(); ++i) {
      if (found.at(i) != expected.at(i)) return false;
    }
    return found.size() == expected.size();
  });
}

}  // namespace stretto
