#include <algorithm>

#include "core/fail.hpp"
#include "device/stream/kernel_scope.hpp"
#include "layers/attention/grouped_heads.hpp"
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
          .kv_heads = shape.kv_heads,
          .query_positions = division_.of_ring_rank(sequence, ring_.rank()),
          .key_positions = division_.of_ring_rank(sequence, source),
          .mask = mask_,
          .starts = shape.starts_data()};
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

// Copies so many columns of keys, and of values; at once where they lie beside each other.
void copy_keys_and_values(const QueriesKeysValues& from, const QueriesKeysValues& to, std::int64_t columns) {
  const auto adjoin = [&](const QueriesKeysValues& of) {
    return of.k.tensor.raw() == of.v.tensor.raw() && of.k.first_column + columns == of.v.first_column;
  };
  if (adjoin(from) && adjoin(to)) return copy_heads(from.k, to.k, 2 * columns);
  copy_heads(from.k, to.k, columns);
  copy_heads(from.v, to.v, columns);
}

// The keys and values that travel: a block of both, so many columns of each.
QueriesKeysValues block_heads(const Tensor& block) { return {.k = {block}, .v = {block, block.columns() / 2}}; }

Tensor packed_keys_and_values(const QueriesKeysValues& of, std::int64_t columns) {
  Tensor block({of.k.tensor.rows(), 2 * columns}, of.k.tensor.dtype());
  copy_keys_and_values(of, block_heads(block), columns);
  return block;
}

QueriesKeysValues all_from_group(const QueriesKeysValues& of, std::int64_t first, const AttentionCore::Shape& shape) {
  return {stretto::from_group(of.q, first, heads_a_group(shape), shape.head_size),
          stretto::from_group(of.k, first, 1, shape.head_size), stretto::from_group(of.v, first, 1, shape.head_size)};
}

}  // namespace

Tensor RingAttention::forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const {
  const std::int64_t rows = shape.batch * shape.rows;
  const DType dtype = of.q.tensor.dtype(), accumulator = kernels::accumulator(dtype);
  Tensor sum({rows, shape.heads * shape.head_size}, accumulator);
  saved = {
      .shape = shape, .of = of, .attended = {}, .log_sum_exp = Tensor({shape.batch, shape.heads, shape.rows}, accumulator)};
  RingPass blocks({packed_keys_and_values(of, shape.kv_heads * shape.head_size)}, ring_, blocks_stream_, "keys and values",
                  ring_reach(division_, mask_, shape.rows));
  bool merge = false;
  do {
    const QueriesKeysValues current = block_heads(blocks.current()[0]);
    kernels::attention_block_forward(block_of(shape, blocks.source()), of.q, current.k, current.v, {sum}, saved.log_sum_exp,
                                     merge);
    merge = true;
  } while (blocks.rotate());
  if (accumulator == dtype) return saved.attended = sum;
  saved.attended = Tensor(sum.shape(), dtype);
  kernels::convert(sum, saved.attended);
  return saved.attended;
}

namespace {

// Some of the groups of heads in backward. Their keys, values and gradients travel apart from those of the others.
struct TravellingHeads {
  AttentionCore::Shape shape;  // with these heads only
  std::int64_t first;          // of the groups
  Tensor log_sum_exp;
  RingPass blocks;
  RingSum sums;
  bool adds = false;  // to the gradients of queries
  std::int64_t columns() const { return shape.kv_heads * shape.head_size; }
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
// since ranks would then start the hops of two halves in different orders, and where there is one group of heads.
void RingAttention::backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const {
  const Shape& shape = saved.shape;
  const std::int64_t each = heads_a_group(shape), width = shape.heads * shape.head_size;
  const DType dtype = dattended.dtype(), accumulator = kernels::accumulator(dtype);
  const std::vector<int> reach = ring_reach(division_, mask_, shape.rows);
  const bool halves = makes_all_hops(reach);
  std::vector<TravellingHeads> parts;
  for (std::int64_t first = 0; first < shape.kv_heads;) {
    const std::int64_t groups = first > 0 || !halves ? shape.kv_heads - first : (shape.kv_heads + 1) / 2;
    const Tensor block = packed_keys_and_values(all_from_group(saved.of, first, shape), groups * shape.head_size);
    parts.push_back({.shape = {shape.batch, shape.rows, groups * each, groups, shape.head_size, shape.starts},
                     .first = first,
                     .log_sum_exp = log_sum_exp_of(saved, first * each, groups * each),
                     .blocks = {{block}, ring_, blocks_stream_, "keys and values", reach},
                     .sums = {{block}, sums_, sums_stream_, "gradients of keys and values", reach, accumulator}});
    first += groups;
  }
  const kernels::TokenHeads dq = like(gradients.q, Tensor({dattended.rows(), width}, accumulator), width);
  const auto attend = [&](TravellingHeads& part, int source, const QueriesKeysValues& keys, const Tensor& gradient) {
    const auto its = [&](const kernels::TokenHeads& heads) {
      return stretto::from_group(heads, part.first, each, shape.head_size);
    };
    const QueriesKeysValues sums = block_heads(gradient);
    kernels::attention_block_backward(block_of(part.shape, source), its(saved.of.q), keys.k, keys.v, its({saved.attended}),
                                      part.log_sum_exp, its({dattended}), its(dq), sums.k, sums.v, {.queries = part.adds});
    part.adds = true;
  };
  const auto attend_to_own = [&](TravellingHeads& part) {
    attend(part, ring_.rank(), all_from_group(saved.of, part.first, shape), part.sums.own()[0]);
  };
  attend_to_own(parts.front());
  for (int hop = 1; hop < ring_.size(); ++hop) {
    for (TravellingHeads& part : parts) {
      if (!part.blocks.rotate()) continue;
      attend(part, part.blocks.source(), block_heads(part.blocks.current()[0]), part.sums.contribution()[0]);
      part.sums.pass();
    }
  }
  if (parts.size() > 1) attend_to_own(parts.back());
  const auto rounded = [&](const Tensor& from) {
    if (from.dtype() == dtype) return from;
    Tensor result(from.shape(), dtype);
    kernels::convert(from, result);
    return result;
  };
  copy_heads(like(dq, rounded(dq.tensor), width), gradients.q, width);
  for (TravellingHeads& part : parts) {
    copy_keys_and_values(block_heads(rounded(part.sums.finish()[0])), all_from_group(gradients, part.first, shape),
                         part.columns());
  }
}

}  // namespace stretto
