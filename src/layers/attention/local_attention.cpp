#include "stretto/layers/attention.hpp"

namespace stretto {
namespace {

kernels::AttentionBlock block_of(const AttentionCore::Shape& shape, const kernels::AttentionMask& mask) {
  return {.batch = shape.batch,
          .queries = shape.rows,
          .keys = shape.rows,
          .heads = shape.heads,
          .head_size = shape.head_size,
          .mask = mask};
}

}  // namespace

Tensor LocalAttention::forward(const Shape& shape, const Tensor& qkv, Saved& saved) const {
  const std::int64_t width = shape.heads * shape.head_size;
  saved = {.shape = shape,
           .qkv = qkv,
           .attended = Tensor({qkv.rows(), width}, qkv.dtype()),
           .log_sum_exp = Tensor({shape.batch, shape.heads, shape.rows}, kernels::accumulator(qkv.dtype()))};
  if (mask_ == kernels::AttentionMask()) {
    kernels::attention_forward({shape.batch, shape.rows, shape.heads, shape.head_size}, qkv, saved.attended,
                               saved.log_sum_exp);
  } else {
    kernels::attention_block_forward(block_of(shape, mask_), {qkv}, {qkv, width}, {qkv, 2 * width}, {saved.attended},
                                     saved.log_sum_exp);
  }
  return saved.attended;
}

Tensor LocalAttention::backward(const Tensor& dattended, const Saved& saved) const {
  const Shape& shape = saved.shape;
  const Tensor& qkv = saved.qkv;
  const std::int64_t width = shape.heads * shape.head_size;
  Tensor dqkv(qkv.shape(), qkv.dtype());
  if (mask_ == kernels::AttentionMask()) {
    kernels::attention_backward({shape.batch, shape.rows, shape.heads, shape.head_size}, qkv, saved.attended,
                                saved.log_sum_exp, dattended, dqkv);
  } else {
    kernels::attention_block_backward(block_of(shape, mask_), {qkv}, {qkv, width}, {qkv, 2 * width}, {saved.attended},
                                      saved.log_sum_exp, {dattended}, {dqkv}, {dqkv, width}, {dqkv, 2 * width});
  }
  return dqkv;
}

}  // namespace stretto
