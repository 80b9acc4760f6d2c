#include "stretto/layers/weight_gradients.hpp"

#include <utility>

namespace stretto {

void WeightGradients::add(const UsedParameters& used, std::function<void()> compute, std::function<void()> prepare) {
  if (!used.any_trainable()) return;
  entries_.push_back({&used, std::move(compute), std::move(prepare)});
}

void WeightGradients::compute(ParameterUse& use) {
  std::vector<Entry> entries = std::exchange(entries_, {});
  const auto prepare = [&](std::size_t i) {
    if (i < entries.size() && entries[i].prepare) std::exchange(entries[i].prepare, nullptr)();
  };
  prepare(0);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    prepare(i + 1);
    const InUse in_use(use, *entries[i].used, Pass::backward_weight);
    std::exchange(entries[i].compute, nullptr)();
  }
}

}  // namespace stretto
