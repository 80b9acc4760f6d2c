#include "core/fail.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/attention.hpp"

namespace stretto {
namespace {

Tensor keys_and_values(const Tensor& qkv, std::int64_t width) {
  Tensor result({qkv.rows(), 2 * width}, qkv.dtype());
  kernels::copy_columns(qkv, width, result, 0, 2 * width);
  return result;
}

}  // namespace

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
    int hops = ranks - 1;
    while (hops > 0 && !mask.sees_any(tokens_of((source + hops) % ranks), tokens_of(source))) --hops;
    reach.push_back(hops);
  }
  return reach;
}

Tensor RingAttention::forward(const Shape& shape, const Tensor& qkv, Saved& saved) const {
  const std::int64_t width = shape.heads * shape.head_size;
  const DType accumulator = kernels::accumulator(qkv.dtype());
  Tensor sum({qkv.rows(), width}, accumulator);
  saved = {.shape = shape,
           .qkv = qkv,
           .attended = {},
           .log_sum_exp = Tensor({shape.batch, shape.heads, shape.rows}, accumulator)};
  RingPass blocks({keys_and_values(qkv, width)}, ring_, blocks_stream_, "keys and values",
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

Tensor RingAttention::backward(const Tensor& dattended, const Saved& saved) const {
  const Shape& shape = saved.shape;
  const Tensor& qkv = saved.qkv;
  const std::int64_t width = shape.heads * shape.head_size;
  const DType accumulator = kernels::accumulator(qkv.dtype());
  const Tensor dq({qkv.rows(), width}, accumulator);
  const std::vector<int> hops = ring_reach(division_, mask_, shape.rows);
  RingPass blocks({keys_and_values(qkv, width)}, ring_, blocks_stream_, "keys and values", hops);
  RingSum sums(blocks.current(), sums_, sums_stream_, "gradients of keys and values", hops, accumulator);
  bool adds = false;
  const auto attend = [&](const Tensor& block, const Tensor& gradient) {
    kernels::attention_block_backward(block_of(shape, blocks.source()), {qkv}, {block}, {block, width}, {saved.attended},
                                      saved.log_sum_exp, {dattended}, {dq}, {gradient}, {gradient, width},
                                      {.queries = adds});
    adds = true;
  };
  attend(blocks.current()[0], sums.own()[0]);
  while (blocks.rotate()) {
    attend(blocks.current()[0], sums.contribution()[0]);
    sums.pass();
  }
  const Tensor dkv = sums.finish()[0];
  Tensor dqkv(qkv.shape(), qkv.dtype());
  const auto put = [&](const Tensor& from, std::int64_t column) {
    Tensor rounded = from;
    if (from.dtype() != dqkv.dtype()) {
      rounded = Tensor(from.shape(), dqkv.dtype());
      kernels::convert(from, rounded);
    }
    kernels::copy_columns(rounded, 0, dqkv, column, rounded.columns());
  };
  put(dq, 0);
  put(dkv, width);
  return dqkv;
}

}  // namespace stretto
