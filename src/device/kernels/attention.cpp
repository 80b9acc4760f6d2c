#include "device/kernels/arguments.hpp"
#include "device/kernels/attention_block.hpp"
#include "device/kernels/run_kernel.hpp"

namespace stretto::kernels {
namespace {

void check_shapes(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  const auto [batch, sequence, heads, head_size] = shape;
  require(batch >= 0 && sequence >= 0 && heads >= 0 && head_size >= 1,
          "Attention over {} sequences of {} tokens with {} heads of {} elements makes no sense.", batch, sequence, heads,
          head_size);
  const std::int64_t elements = batch * sequence * heads * head_size;
  require(is_compute_type(qkv.dtype()) && out.dtype() == qkv.dtype() && log_sum_exp.dtype() == accumulator(qkv.dtype()),
          "Attention of {} cannot write {} and a log-sum-exp of {}.", name(qkv.dtype()), name(out.dtype()),
          name(log_sum_exp.dtype()));
  require(qkv.size() == 3 * elements && out.size() == elements && log_sum_exp.size() == batch * heads * sequence,
          "Attention over {} sequences of {} tokens with {} heads of {} elements does not fit qkv, out and "
          "log-sum-exp of {}, {} and {} elements.",
          batch, sequence, heads, head_size, qkv.size(), out.size(), log_sum_exp.size());
}

void check_positions(const char* of, const Positions& positions) {
  require(
      positions.first >= 0 && positions.stride >= 1 && positions.split >= 0 && positions.second >= 0,
      "Positions of {} cannot begin at {} and {}, one every {}, split at row {}: none may be negative, and strides must be "
      "at least 1.",
      of, positions.first, positions.second, positions.stride, positions.split);
}

void check_block(const AttentionBlock& block) {
  require(block.batch >= 0 && block.queries >= 0 && block.keys >= 0 && block.heads >= 0 && block.head_size >= 1,
          "Attention of {} queries to {} keys in {} sequences, with {} heads of {} elements, makes no sense.", block.queries,
          block.keys, block.batch, block.heads, block.head_size);
  require(block.kv_heads >= 0 && (block.kv_heads == 0 || block.heads % block.kv_heads == 0),
          "{} heads of queries do not divide over {} heads of keys and values.", block.heads, block.kv_heads);
  check_positions("queries", block.query_positions);
  check_positions("keys", block.key_positions);
  const AttentionMask& mask = block.mask;
  require(mask.window >= 0 && mask.stride >= 0 && mask.global >= 0,
          "An attention mask of window {}, stride {} and {} global positions makes no sense: use 0 for those it has not.",
          mask.window, mask.stride, mask.global);
  require(mask.causal || (!mask.sparse() && mask.global == 0),
          "An attention mask with window {}, stride {} and {} global positions must be causal.", mask.window, mask.stride,
          mask.global);
  if (block.starts == nullptr) return;
  require(mask.causal && mask.global == 0,
          "Attention that keeps documents apart must be causal and without global positions, of which the mask has {}.",
          mask.global);
  for (const Positions& positions : {block.query_positions, block.key_positions}) {
    require(positions.split == 0 || positions.at(positions.split - 1) < positions.second,
            "Attention that keeps documents apart needs positions that grow from row to row, and those from row {} on begin "
            "again at {}.",
            positions.split, positions.second);
  }
}

struct Named {
  const char* name;
  const TokenHeads& operand;
  std::int64_t tokens, heads;
  bool may_accumulate, must_accumulate;
};

void check_operand(const AttentionBlock& block, DType f, const Named& given) {
  const auto& [tensor, column, parts, part_step] = given.operand;
  require(parts >= 1 && given.heads % parts == 0 && (parts == 1 || part_step >= given.heads / parts * block.head_size),
          "Attention with {} heads of {} elements in {} cannot have them in {} parts that begin {} columns apart.",
          given.heads, block.head_size, given.name, parts, part_step);
  const DType dtype = tensor.dtype();
  require(given.must_accumulate ? dtype == accumulator(f) : dtype == f || (given.may_accumulate && dtype == accumulator(f)),
          "Attention of {} needs {} in {}, but was given {}.", name(f), given.name,
          given.must_accumulate ? name(accumulator(f)) : name(f), name(dtype));
  const std::int64_t width = (parts - 1) * part_step + given.heads / parts * block.head_size;
  require(
      tensor.rows() == block.batch * given.tokens && column >= 0 && column + width <= tensor.columns(),
      "Attention with {} tokens in {} sequences needs {} rows and the columns [{}, {}) in {}, but was given {} rows of {}.",
      given.tokens, block.batch, block.batch * given.tokens, column, column + width, given.name, tensor.rows(),
      tensor.columns());
}

void check_inputs(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                  const Tensor& log_sum_exp) {
  check_block(block);
  check_compute_type(q.tensor.dtype());
  const DType f = q.tensor.dtype();
  check_operand(block, f, {"q", q, block.queries, block.heads, false, false});
  check_operand(block, f, {"k", k, block.keys, kv_heads_of(block), false, false});
  check_operand(block, f, {"v", v, block.keys, kv_heads_of(block), false, false});
  check_holds("attention", "log_sum_exp", log_sum_exp, accumulator(f), block.batch * block.heads * block.queries);
}

bool begin_together(const Tensor& a, const Tensor& b) { return a.raw() == b.raw() && a.shape() == b.shape(); }

// Whether the heads are all columns of the rows, or one of three equal parts of them.
bool are_all(const AttentionBlock& block, const TokenHeads& heads, std::int64_t part = 0, std::int64_t parts = 1) {
  const std::int64_t width = block.heads * block.head_size;
  return heads.parts == 1 && heads.tensor.columns() == parts * width && heads.first_column == part * width;
}
bool are_packed(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v) {
  return begin_together(q.tensor, k.tensor) && begin_together(q.tensor, v.tensor) && are_all(block, q, 0, 3) &&
         are_all(block, k, 1, 3) && are_all(block, v, 2, 3);
}

// Dense causal attention of whole sequences, of equal heads.
bool is_of_whole_sequences(const AttentionBlock& block) {
  return block.starts == nullptr && block.queries == block.keys && kv_heads_of(block) == block.heads &&
         block.mask == AttentionMask() && block.query_positions == Positions() && block.key_positions == Positions();
}

AttentionShape shape_of(const AttentionBlock& block) { return {block.batch, block.queries, block.heads, block.head_size}; }

}  // namespace

void attention_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp) {
  check_shapes(shape, qkv, out, log_sum_exp);
  const KernelScope scope("attention_forward");
  if (scope.skipped()) return;
  if (on_gpu("attention_forward", qkv, out, log_sum_exp))
    return gpu().kernels().attention_forward(shape, qkv, out, log_sum_exp, gpu_stream());
  cpu::attention_forward(block_of(shape), heads_of(shape, qkv, 0), heads_of(shape, qkv, 1), heads_of(shape, qkv, 2),
                         heads_of(shape, out, 0, 1), log_sum_exp, false);
}

void attention_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out, const Tensor& log_sum_exp,
                        const Tensor& dout, const Tensor& dqkv) {
  check_shapes(shape, qkv, dout, log_sum_exp);
  check_shapes(shape, dqkv, out, log_sum_exp);
  const KernelScope scope("attention_backward");
  if (scope.skipped()) return;
  if (on_gpu("attention_backward", qkv, out, log_sum_exp, dout, dqkv))
    return gpu().kernels().attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv, gpu_stream());
  cpu::attention_backward(block_of(shape), heads_of(shape, qkv, 0), heads_of(shape, qkv, 1), heads_of(shape, qkv, 2),
                          heads_of(shape, out, 0, 1), log_sum_exp, heads_of(shape, dout, 0, 1), heads_of(shape, dqkv, 0),
                          heads_of(shape, dqkv, 1), heads_of(shape, dqkv, 2), {});
}

void attention_block_forward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                             const TokenHeads& out, const Tensor& log_sum_exp, bool merge) {
  check_inputs(block, q, k, v, log_sum_exp);
  check_operand(block, q.tensor.dtype(), {"out", out, block.queries, block.heads, true, merge});
  if (is_of_whole_sequences(block) && !merge && are_packed(block, q, k, v) && are_all(block, out) &&
      out.tensor.dtype() == q.tensor.dtype())
    return attention_forward(shape_of(block), q.tensor, out.tensor, log_sum_exp);
  run_kernel("attention_block_forward", cpu::attention_forward, &GpuKernels::attention_block_forward, block, q, k, v, out,
             log_sum_exp, merge);
}

void attention_block_backward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                              const TokenHeads& out, const Tensor& log_sum_exp, const TokenHeads& dout, const TokenHeads& dq,
                              const TokenHeads& dk, const TokenHeads& dv, const AttentionSums& sums) {
  check_inputs(block, q, k, v, log_sum_exp);
  const DType f = q.tensor.dtype();
  check_operand(block, f, {"out", out, block.queries, block.heads, true, false});
  check_operand(block, f, {"dout", dout, block.queries, block.heads, false, false});
  check_operand(block, f, {"dq", dq, block.queries, block.heads, true, sums.queries});
  check_operand(block, f, {"dk", dk, block.keys, kv_heads_of(block), true, sums.keys});
  check_operand(block, f, {"dv", dv, block.keys, kv_heads_of(block), true, sums.keys});
  if (is_of_whole_sequences(block) && !sums.queries && !sums.keys && are_packed(block, q, k, v) && are_all(block, out) &&
      are_all(block, dout) && are_packed(block, dq, dk, dv) && out.tensor.dtype() == f && dq.tensor.dtype() == f)
    return attention_backward(shape_of(block), q.tensor, out.tensor, log_sum_exp, dout.tensor, dq.tensor);
  run_kernel("attention_block_backward", cpu::attention_backward, &GpuKernels::attention_block_backward, block, q, k, v, out,
             log_sum_exp, dout, dq, dk, dv, sums);
}

}  // namespace stretto::kernels
