#pragma once
#include <cstdint>
#include <vector>

#include "stretto/layers/recompute.hpp"
#include "stretto/method.hpp"

// The cost of layers as data. Each layer says beside its forward and backward what one microbatch makes it compute, move,
// keep and exchange on the first rank of its tensor-parallel group. Plans of memory and traffic, floating-point operations,
// the balance of pipeline stages and predicted times add these up (stretto/planning/). A layer without memory will do.
namespace stretto {

// The microbatch that a cost is of.
struct CostedTokens {
  std::int64_t count = 0;  // that are here
  DType dtype = DType::f32;
  Recompute level = Recompute::none;
  bool splits = false;           // gradients of weights come later (WeightGradients)
  bool exchanges_heads = false;  // UlyssesAttention

  std::int64_t bytes(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
  DType accumulator() const;
  std::int64_t statistic() const { return static_cast<std::int64_t>(size_of(accumulator())); }  // bytes of one
};

// A matrix of m x k times one of k x n.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool adds_gradient = false;  // to the gradient of a weight
  double operations() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// A collective over the tensor-parallel group.
struct Exchange {
  enum class Hidden : std::uint8_t {
    not_at_all,
    in_chunks,  // of the product, whose result or input it exchanges (overlap/chunked_gemm.hpp)
    beside,     // the product, which does not need it
  };
  Collective kind = Collective::all_reduce;
  std::int64_t elements = 0;  // of the whole tensor
  DType dtype = DType::f32;
  Hidden hidden = Hidden::not_at_all;
  Product product = {};
  std::int64_t bytes() const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
};

struct STRETTO_API PassCost {
  std::vector<Product> products;
  std::vector<Exchange> exchanges;
  double bytes = 0, kernels = 0;  // that kernels other than products read and write, and their number

  PassCost operator+(const PassCost& other) const;
  double operations() const;  // of the products
};

// Heads with which a layer attends, of all tensor-parallel ranks.
struct AttendingHeads {
  std::int64_t heads = 0, kv_heads = 0, head_size = 0;
};

struct STRETTO_API LayerCost {
  PassCost forward;
  PassCost input;                         // backward, for the gradients of activations
  PassCost weight;                        // backward, for those of weights
  PassCost again;                         // of forward, which backward computes again at this level of recomputation
  std::vector<AttendingHeads> attention;  // in forward and in input, and again with Recompute::full
  std::int64_t parameters = 0;            // elements on this rank
  // Bytes of activations: kept between forward and backward; added to that during backward at most, without the gradient of
  // the layer's result; and left for weight gradients that come later.
  std::int64_t kept = 0, backward = 0, later = 0;

  // The cost of this layer and of another one behind it, whose backward comes first and frees what it kept.
  LayerCost before(const LayerCost& behind) const;
  double operations() const { return forward.operations() + input.operations() + weight.operations(); }
};

}  // namespace stretto
