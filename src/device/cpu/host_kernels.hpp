#pragma once
#include "stretto/kernels.hpp"

// The kernels of stretto/kernels.hpp on the host, behind the checks of device/kernels/: each computes in the calling thread,
// by the instructions that STRETTO_CPU_LEVEL allows, and none is recorded as a kernel. Their results are those that
// stretto/kernels.hpp describes. gpu_kernels.hpp is the same table for a GPU.
namespace stretto::kernels::cpu {

// ---- for collectives: elements may have any alignment
struct Reduction {  // fits into a register, so that a call with small arrays has no argument in memory
  ReduceOp op;
  DType dtype;
  int source_count;
};
void reduce_all(Reduction reduction, const void* const* sources, void* out, std::int64_t count, std::int64_t divisor);
void reduce_all(Reduction reduction, const void* const* sources, void* const* outs, int out_count, std::int64_t count,
                std::int64_t divisor, bool streaming);
void copy_streaming(const void* from, void* to, std::size_t bytes);
void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor);
void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor);
void convert(DType from, const void* x, DType to, void* out, std::int64_t count);
void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
              const QuantizeOptions& options);
void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                       std::int64_t count, std::int64_t divisor);
void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                std::int64_t count, std::int64_t divisor, const QuantizeOptions& options);

// One record of nf4.hpp, from and to its 16,384 elements.
void store_nf4(const float* x, std::uint8_t* record);
void restore_nf4(const std::uint8_t* record, float* out);

// ---- for layers
double sum_of_squares(const Tensor& x);
void gelu_forward(const Tensor& x, const Tensor& y);
void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);
void gelu_erf_forward(const Tensor& x, const Tensor& y);
void gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);
void silu_gate_forward(const Tensor& x, const Tensor& y);
void silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);
void dropout(const Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out);
void add_bias(const Tensor& x, const Tensor& bias);
void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y);
void add_column_sums(const Tensor& x, const Tensor& sums);
void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                        const Tensor& mean, const Tensor& rstd);
void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                         const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta);
// The norm of heads; a whole row counts as one head. rms_norm_backward adds to dx if `adds`, and else overwrites it.
void rms_norm_forward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon, const TokenHeads& y,
                      const Tensor& rstd);
void rms_norm_backward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                       const TokenHeads& dy, const TokenHeads& dx, bool adds, const Tensor& dgamma);
void rotary(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table, const TokenHeads& out,
            bool inverse);
void softmax(const Tensor& x, const Tensor& y);
void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                           const Tensor& sum_exp, const Tensor& target_logit);
void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp);
void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                            const Tensor& sum_exp, double factor);
void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y);
void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable);
void adamw(const AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
           const Tensor& parameter);
void sgd(const SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b, const Tensor& parameter);
void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c,
          bool accumulate);  // no empty matrices
void attention_forward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                       const TokenHeads& out, const Tensor& log_sum_exp, bool merge);
void attention_backward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k, const TokenHeads& v,
                        const TokenHeads& out, const Tensor& log_sum_exp, const TokenHeads& dout, const TokenHeads& dq,
                        const TokenHeads& dk, const TokenHeads& dv, const AttentionSums& sums);

}  // namespace stretto::kernels::cpu
