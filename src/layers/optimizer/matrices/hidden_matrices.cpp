#include "layers/optimizer/matrices/hidden_matrices.hpp"

#include <algorithm>
#include <numeric>

#include "layers/optimizer/matrices/newton_schulz.hpp"

namespace stretto {

std::vector<HiddenMatrix> hidden_matrices(const Parameters& parameters) {
  std::vector<HiddenMatrix> result;
  for (const auto& parameter : parameters.all()) {
    if (!parameter->is_here || !parameter->trainable) continue;
    std::int64_t first = parameter->first_global_element() / std::max<std::int64_t>(1, parameter->global_shape.back());
    for (const std::int64_t rows : parameter->matrices) {
      result.push_back({parameter->index, first, rows, parameter->global_shape.back()});
      first += rows;
    }
  }
  return result;
}

std::vector<int> owners_of(const std::vector<HiddenMatrix>& matrices, int ranks) {
  const auto flops = [&](std::size_t i) { return newton_schulz_flops(matrices[i].rows, matrices[i].columns); };
  std::vector<std::size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t i, std::size_t j) { return flops(i) > flops(j); });
  std::vector<double> load(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners(matrices.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += flops(i);
    owners[i] = static_cast<int>(least - load.begin());
  }
  return owners;
}

}  // namespace stretto
