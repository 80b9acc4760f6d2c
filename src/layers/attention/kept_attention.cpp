#include "stretto/layers/kept_attention.hpp"

#include "core/fail.hpp"
#include "layers/attention/grouped_heads.hpp"

namespace stretto {

void KeptAttention::start(std::int64_t first, std::int64_t capacity) const {
  if (capacity != capacity_) blocks_.clear();
  active_ = true;
  first_ = first;
  capacity_ = capacity;
  block_ = 0;
}

Tensor KeptAttention::forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const {
  if (!active_) return otherwise_->forward(shape, of, saved);
  require(shape.batch == 1 && first_ + shape.rows <= capacity_,
          "Tokens {} to {} of {} sequences cannot be kept; keep at most {} of one.", first_, first_ + shape.rows,
          shape.batch, capacity_);
  const std::int64_t columns = shape.kv_heads * shape.head_size;
  const DType dtype = of.k.tensor.dtype();
  if (block_ == blocks_.size())
    blocks_.push_back({Tensor({capacity_, columns}, dtype), Tensor({capacity_, columns}, dtype)});
  const auto& [keys, values] = blocks_[block_++];
  const auto rows = [&](const Tensor& kept, std::int64_t from, std::int64_t count) {
    return kernels::TokenHeads{kept.view(from * columns, {count, columns})};
  };
  copy_heads(of.k, rows(keys, first_, shape.rows), columns);
  copy_heads(of.v, rows(values, first_, shape.rows), columns);
  const std::int64_t all = first_ + shape.rows;
  const kernels::AttentionBlock block{.batch = 1,
                                      .queries = shape.rows,
                                      .keys = all,
                                      .heads = shape.heads,
                                      .head_size = shape.head_size,
                                      .kv_heads = shape.kv_heads,
                                      .query_positions = {.first = first_},
                                      .mask = mask_};
  Tensor attended({shape.rows, shape.heads * shape.head_size}, of.q.tensor.dtype());
  const Tensor log_sum_exp({1, shape.heads, shape.rows}, kernels::accumulator(dtype));
  kernels::attention_block_forward(block, of.q, rows(keys, 0, all), rows(values, 0, all), {attended}, log_sum_exp);
  return attended;
}

}  // namespace stretto
