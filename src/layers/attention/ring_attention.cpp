#include <algorithm>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/attention.hpp"

namespace stretto {

RingAttention::RingAttention(const Communicator& ring, const SequenceDivision& division, kernels::AttentionMask mask,
                             bool overlap)
    : ring_(ring.duplicate(ring.name())),
      sums_(ring.duplicate(ring.name() + " sums")),
      blocks_stream_(overlap ? Stream("ring", Priority::urgent) : computation()),
      sums_stream_(overlap ? Stream("ring sums") : computation()),
      division_(division),
      mask_(mask) {
  require(division.ring == ring.size(), "Sequences that are divided over {} ring ranks cannot go round a ring of {}.",
          division.ring, ring.size());
}

kernels::AttentionBlock RingAttention::block_of(const Shape& shape, int source) const {
  const std::int64_t sequence = shape.rows * division_.ring;
  return {.batch = shape.batch,
          .queries = shape.rows,
          .keys = shape.rows,
          .heads = shape.heads,
          .head_size = shape.head_size,
          .query_positions = division_.of_ring_rank(sequence, ring_.rank()),
          .key_positions = division_.of_ring_rank(sequence, source),
          .mask = mask_};
}

std::vector<int> ring_reach(const SequenceDivision& division, const kernels::AttentionMask& mask, std::int64_t rows) {
  const int ranks = division.ring;
  const auto tokens_of = [&](int rank) { return kernels::TokenRange{division.of_ring_rank(rows * ranks, rank), 0, rows}; };
  std::vector<int> reach;
  for (int source = 0; source < ranks; ++source) {
    int farthest = ranks - 1;
    while (farthest > 0 && !mask.sees_any(tokens_of((source + farthest) % ranks), tokens_of(source))) --farthest;
    reach.push_back(farthest);
  }
  return reach;
}

bool makes_all_hops(const std::vector<int>& reach) {
  return std::ranges::all_of(reach, [&](int made) { return made + 1 == static_cast<int>(reach.size()); });
}

namespace {

// Copies keys and values of so many columns each. In either matrix the values begin `apart` columns behind the keys.
struct KeysAndValues {
  Tensor tensor;
  std::int64_t column, apart;
};
void copy_keys_and_values(const KeysAndValues& from, const KeysAndValues& to, std::int64_t columns) {
  if (from.apart == columns && to.apart == columns)
    return kernels::copy_columns(from.tensor, from.column, to.tensor, to.column, 2 * columns);
  for (int i = 0; i < 2; ++i)
    kernels::copy_columns(from.tensor, from.column + i * from.apart, to.tensor, to.column + i * to.apart, columns);
}

// Packs columns [first, first + columns) of the keys and of the values. Queries, keys and values have `width` columns each.
Tensor packed_keys_and_values(const Tensor& qkv, std::int64_t width, std::int64_t first, std::int64_t columns) {
  Tensor block({qkv.rows(), 2 * columns}, qkv.dtype());
  copy_keys_and_values({qkv, width + first, width}, {block, 0, columns}, columns);
  return block;
}

}  // namespace

Tensor RingAttention::forward(const Shape& shape, const Tensor& qkv, Saved& saved) const {
  const std::int64_t width = shape.heads * shape.head_size;
  const DType accumulator = kernels::accumulator(qkv.dtype());
  Tensor sum({qkv.rows(), width}, accumulator);
  saved = {.shape = shape,
           .qkv = qkv,
           .attended = {},
           .log_sum_exp = Tensor({shape.batch, shape.heads, shape.rows}, accumulator)};
  RingPass blocks({packed_keys_and_values(qkv, width, 0, width)}, ring_, blocks_stream_, "keys and values",
                  ring_reach(division_, mask_, shape.rows));
  bool merge = false;
  do {
    const Tensor& current = blocks.current()[0];
    kernels::attention_block_forward(block_of(shape, blocks.source()), {qkv}, {current}, {current, width}, {sum},
                                     saved.log_sum_exp, merge);
    merge = true;
  } while (blocks.rotate());
  if (accumulator == qkv.dtype()) return saved.attended = sum;
  saved.attended = Tensor(sum.shape(), qkv.dtype());
  kernels::convert(sum, saved.attended);
  return saved.attended;
}

namespace {

// Some of the heads in backward. Their keys, values and gradients travel apart from those of the other heads.
struct TravellingHeads {
  AttentionCore::Shape shape;  // with these heads only
  std::int64_t column;         // of the first of them, among the queries
  Tensor log_sum_exp;
  RingPass blocks;
  RingSum sums;
  bool adds = false;  // to the gradients of queries
  std::int64_t width() const { return shape.heads * shape.head_size; }
};

Tensor log_sum_exp_of(const AttentionCore::Saved& saved, std::int64_t first_head, std::int64_t heads) {
  const AttentionCore::Shape& shape = saved.shape;
  if (heads == shape.heads) return saved.log_sum_exp;
  Tensor result({shape.batch, heads, shape.rows}, saved.log_sum_exp.dtype());
  as_kernel("copy", [&] {
    for (std::int64_t i = 0; i < shape.batch; ++i) {
      result.view(i * heads * shape.rows, {heads * shape.rows})
          .copy_from(saved.log_sum_exp.view((i * shape.heads + first_head) * shape.rows, {heads * shape.rows}));
    }
  });
  return result;
}

}  // namespace

// The heads travel and compute in two halves. One computes while the other's block arrives, or its gradients go on; of the
// own block, the first half is computed first, while blocks arrive, and the second last, while gradients come home. So even
// two ranks, which exchange one block, hide both ways of it. The halves stay together where some block makes fewer hops,
// since ranks would then start the hops of two halves in different orders.
Tensor RingAttention::backward(const Tensor& dattended, const Saved& saved) const {
  const Shape& shape = saved.shape;
  const Tensor& qkv = saved.qkv;
  const std::int64_t width = shape.heads * shape.head_size;
  const DType accumulator = kernels::accumulator(qkv.dtype());
  const std::vector<int> reach = ring_reach(division_, mask_, shape.rows);
  const bool halves = makes_all_hops(reach);
  std::vector<TravellingHeads> parts;
  for (std::int64_t first = 0; first < shape.heads;) {
    const std::int64_t heads = first > 0 || !halves ? shape.heads - first : (shape.heads + 1) / 2;
    const std::int64_t column = first * shape.head_size, columns = heads * shape.head_size;
    const Tensor block = packed_keys_and_values(qkv, width, column, columns);
    parts.push_back({.shape = {shape.batch, shape.rows, heads, shape.head_size},
                     .column = column,
                     .log_sum_exp = log_sum_exp_of(saved, first, heads),
                     .blocks = {{block}, ring_, blocks_stream_, "keys and values", reach},
                     .sums = {{block}, sums_, sums_stream_, "gradients of keys and values", reach, accumulator}});
    first += heads;
  }
  const Tensor dq({qkv.rows(), width}, accumulator);
  const auto attend = [&](TravellingHeads& part, int source, const kernels::TokenHeads& k, const kernels::TokenHeads& v,
                          const Tensor& gradient) {
    kernels::attention_block_backward(block_of(part.shape, source), {qkv, part.column}, k, v, {saved.attended, part.column},
                                      part.log_sum_exp, {dattended, part.column}, {dq, part.column}, {gradient},
                                      {gradient, part.width()}, {.queries = part.adds});
    part.adds = true;
  };
  const auto attend_to_own = [&](TravellingHeads& part) {
    attend(part, ring_.rank(), {qkv, width + part.column}, {qkv, 2 * width + part.column}, part.sums.own()[0]);
  };
  attend_to_own(parts.front());
  for (int hop = 1; hop < ring_.size(); ++hop) {
    for (TravellingHeads& part : parts) {
      if (!part.blocks.rotate()) continue;
      const Tensor& block = part.blocks.current()[0];
      attend(part, part.blocks.source(), {block}, {block, part.width()}, part.sums.contribution()[0]);
      part.sums.pass();
    }
  }
  if (parts.size() > 1) attend_to_own(parts.back());
  Tensor dqkv(qkv.shape(), qkv.dtype());
  const auto rounded = [&](const Tensor& from) {
    if (from.dtype() == dqkv.dtype()) return from;
    Tensor result(from.shape(), dqkv.dtype());
    kernels::convert(from, result);
    return result;
  };
  kernels::copy_columns(rounded(dq), 0, dqkv, 0, width);
  for (TravellingHeads& part : parts) {
    copy_keys_and_values({rounded(part.sums.finish()[0]), 0, part.width()}, {dqkv, width + part.column, width},
                         part.width());
  }
  return dqkv;
}

}  // namespace stretto
