#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/attention/attention.cpp"
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS                                                              \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | \
   HWY_RVV)  // of x86, those that are disabled everywhere; the others' vectors cannot be elements of arrays
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file again:
#include "device/cpu/attention/attention_backward-inl.hpp"
#include "device/cpu/attention/attention_forward-inl.hpp"
#include "device/cpu/cpu_level.hpp"
#include "device/cpu/host_kernels.hpp"
#include "device/kernels/attention_block.hpp"

#ifndef STRETTO_ATTENTION_OPERANDS
#define STRETTO_ATTENTION_OPERANDS
namespace stretto::kernels::attention {

struct Forward {
  const TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  bool merge;
};

struct Backward {
  const TokenHeads &q, &k, &v, &out;
  const Tensor& log_sum_exp;
  const TokenHeads &dout, &dq, &dk, &dv;
  AttentionSums sums;
};

}  // namespace stretto::kernels::attention
#endif

HWY_BEFORE_NAMESPACE();
namespace stretto::kernels::attention::HWY_NAMESPACE {

Rows rows_of(const TokenHeads& heads, Index tokens, Index batch, Index head, Index head_size) {
  const Tensor& tensor = heads.tensor;
  const Rows all{static_cast<std::byte*>(tensor.raw()), tensor.dtype(), tensor.columns()};
  return all.from(batch * tokens).at(heads.column(head, head_size));
}

// Calls visit(batch, head) for each head of queries, after begin(batch, kv_head) and before end(batch, kv_head).
template <class Begin, class Visit, class End>
void for_each_head(const AttentionBlock& block, Begin begin, Visit visit, End end) {
  const Index kv_heads = kv_heads_of(block);
  for (Index batch = 0; batch < block.batch; ++batch) {
    for (Index kv_head = 0; kv_head < kv_heads; ++kv_head) {
      begin(batch, kv_head);
      const Index group = block.heads / kv_heads;
      for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) visit(batch, head);
      end(batch, kv_head);
    }
  }
}

template <class T>
void forward_all(const AttentionBlock& block, const Forward& given) {
  ForwardHeads<T> heads(block, are_paired<T>({given.q.tensor.dtype(), given.k.tensor.dtype(), given.v.tensor.dtype()}),
                        given.merge);
  const Index d = block.head_size;
  for_each_head(
      block,
      [&](Index batch, Index kv_head) {
        heads.begin_sequence(batch);
        heads.load(rows_of(given.k, block.keys, batch, kv_head, d), rows_of(given.v, block.keys, batch, kv_head, d));
      },
      [&](Index batch, Index head) {
        heads.attend(rows_of(given.q, block.queries, batch, head, d), rows_of(given.out, block.queries, batch, head, d),
                     given.log_sum_exp.data<T>() + (batch * block.heads + head) * block.queries);
      },
      [](Index, Index) {});
}

template <class T>
void backward_all(const AttentionBlock& block, const Backward& given) {
  BackwardHeads<T> heads(block, are_paired<T>({given.q.tensor.dtype(), given.k.tensor.dtype(), given.v.tensor.dtype(),
                                               given.dout.tensor.dtype()}));
  const Index d = block.head_size;
  for_each_head(
      block,
      [&](Index batch, Index kv_head) {
        heads.begin_sequence(batch);
        heads.load(rows_of(given.k, block.keys, batch, kv_head, d), rows_of(given.v, block.keys, batch, kv_head, d));
      },
      [&](Index batch, Index head) {
        const auto rows = [&](const TokenHeads& of) { return rows_of(of, block.queries, batch, head, d); };
        heads.differentiate(rows(given.q), rows(given.out),
                            given.log_sum_exp.data<T>() + (batch * block.heads + head) * block.queries, rows(given.dout),
                            rows(given.dq), given.sums.queries);
      },
      [&](Index batch, Index kv_head) {
        heads.store(rows_of(given.dk, block.keys, batch, kv_head, d), rows_of(given.dv, block.keys, batch, kv_head, d),
                    given.sums.keys);
      });
}

void forward(const AttentionBlock& block, const Forward& given) {
  return given.log_sum_exp.dtype() == DType::f64 ? forward_all<double>(block, given) : forward_all<float>(block, given);
}

void backward(const AttentionBlock& block, const Backward& given) {
  return given.log_sum_exp.dtype() == DType::f64 ? backward_all<double>(block, given) : backward_all<float>(block, given);
}

}  // namespace stretto::kernels::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stretto::kernels {
namespace attention {
namespace {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

void dispatch_forward(const AttentionBlock& block, const Forward& given) { STRETTO_DISPATCH(forward)(block, given); }
void dispatch_backward(const AttentionBlock& block, const Backward& given) { STRETTO_DISPATCH(backward)(block, given); }

}  // namespace
}  // namespace attention

void cpu::attention_forward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                            const TokenHeads& out, const Tensor& log_sum_exp, bool merge) {
  attention::dispatch_forward(block, {q, k, v, out, log_sum_exp, merge});
}

void cpu::attention_backward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                             const TokenHeads& out, const Tensor& log_sum_exp, const TokenHeads& dout, const TokenHeads& dq,
                             const TokenHeads& dk, const TokenHeads& dv, const AttentionSums& sums) {
  attention::dispatch_backward(block, {q, k, v, out, log_sum_exp, dout, dq, dk, dv, sums});
}

}  // namespace stretto::kernels
#endif
