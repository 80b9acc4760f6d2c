#include "stretto/layers/attention.hpp"

namespace stretto {
namespace {

kernels::AttentionBlock block_of(const AttentionCore::Shape& shape, const kernels::AttentionMask& mask) {
  return {.batch = shape.batch,
          .queries = shape.rows,
          .keys = shape.rows,
          .heads = shape.heads,
          .head_size = shape.head_size,
          .kv_heads = shape.kv_heads,
          .mask = mask,
          .starts = shape.starts_data()};
}

}  // namespace

QueriesKeysValues packed_heads(const AttentionCore::Shape& shape, const Tensor& packed) {
  const std::int64_t parts = shape.heads / shape.kv_heads, width = shape.kv_heads * shape.head_size;
  return {.q = {.tensor = packed, .parts = parts, .part_step = parts > 1 ? width : 0},
          .k = {.tensor = packed, .first_column = parts * width},
          .v = {.tensor = packed, .first_column = (parts + 1) * width}};
}

Tensor LocalAttention::forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const {
  const DType dtype = of.q.tensor.dtype();
  saved = {.shape = shape,
           .of = of,
           .attended = Tensor({shape.batch * shape.rows, shape.heads * shape.head_size}, dtype),
           .log_sum_exp = Tensor({shape.batch, shape.heads, shape.rows}, kernels::accumulator(dtype))};
  kernels::attention_block_forward(block_of(shape, mask_), of.q, of.k, of.v, {saved.attended}, saved.log_sum_exp);
  return saved.attended;
}

void LocalAttention::backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const {
  const auto& [q, k, v] = saved.of;
  kernels::attention_block_backward(block_of(saved.shape, mask_), q, k, v, {saved.attended}, saved.log_sum_exp, {dattended},
                                    gradients.q, gradients.k, gradients.v);
}

}  // namespace stretto
