#include "stretto/layers/layer_cost.hpp"

#include <algorithm>

#include "stretto/kernels.hpp"

namespace stretto {
namespace {

template <class T>
std::vector<T> joined(std::vector<T> first, const std::vector<T>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

DType CostedTokens::accumulator() const { return kernels::accumulator(dtype); }

PassCost PassCost::operator+(const PassCost& other) const {
  return {joined(products, other.products), joined(exchanges, other.exchanges), bytes + other.bytes,
          kernels + other.kernels};
}

double PassCost::operations() const {
  double sum = 0;
  for (const Product& product : products) sum += product.operations();
  return sum;
}

LayerCost LayerCost::before(const LayerCost& behind) const {
  return {.forward = forward + behind.forward,
          .input = behind.input + input,
          .weight = behind.weight + weight,
          .again = again + behind.again,
          .attention = joined(attention, behind.attention),
          .parameters = parameters + behind.parameters,
          .kept = kept + behind.kept,
          .backward = std::max(behind.backward, backward - behind.kept),
          .later = later + behind.later};
}

}  // namespace stretto
