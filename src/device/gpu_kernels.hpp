#pragma once
#include <vector>

#include "stretto/kernels.hpp"
#include "stretto/stored_format.hpp"

namespace stretto {

using GpuStream = struct GpuStreamHandle*;

// The kernels of stretto/kernels.hpp on a GPU, behind the checks of device/kernels/: each puts its work into the stream and
// returns. Results are those that stretto/kernels.hpp describes; sums over rows may be formed in another order than on the
// host, but the order is the same at each call.
class GpuKernels {
 public:
  virtual ~GpuKernels() = default;

  // ---- of collectives: pointers into GPU memory, to elements at any alignment
  virtual void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                          std::int64_t count, std::int64_t divisor, GpuStream stream) = 0;
  virtual void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor, GpuStream stream) = 0;
  virtual void convert(DType from, const void* x, DType to, void* out, std::int64_t count, GpuStream stream) = 0;
  virtual void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                        const kernels::QuantizeOptions& options, GpuStream stream) = 0;
  virtual void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count,
                          GpuStream stream) = 0;
  virtual void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                                 void* out, std::int64_t count, std::int64_t divisor, GpuStream stream) = 0;
  virtual void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                          void* records, std::int64_t count, std::int64_t divisor, const kernels::QuantizeOptions& options,
                          GpuStream stream) = 0;

  virtual void store_values(StoredFormat format, const Tensor& values, const Tensor& records, GpuStream stream) = 0;
  virtual void restore_values(StoredFormat format, const Tensor& records, const Tensor& values, GpuStream stream) = 0;

  // ---- of layers
  virtual void add(const Tensor& a, const Tensor& b, const Tensor& out, GpuStream stream) = 0;
  virtual void scale(const Tensor& x, double factor, GpuStream stream) = 0;
  // sums: one number for each tensor, in GPU memory.
  virtual void sums_of_squares(const std::vector<Tensor>& xs, double* sums, GpuStream stream) = 0;
  virtual void gelu_forward(const Tensor& x, const Tensor& y, GpuStream stream) = 0;
  virtual void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) = 0;
  virtual void gelu_erf_forward(const Tensor& x, const Tensor& y, GpuStream stream) = 0;
  virtual void gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) = 0;
  virtual void silu_gate_forward(const Tensor& x, const Tensor& y, GpuStream stream) = 0;
  virtual void silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) = 0;
  virtual void dropout(const kernels::Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out,
                       GpuStream stream) = 0;
  virtual void add_bias(const Tensor& x, const Tensor& bias, GpuStream stream) = 0;
  virtual void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y, GpuStream stream) = 0;
  virtual void add_column_sums(const Tensor& x, const Tensor& sums, GpuStream stream) = 0;
  virtual void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                                  const Tensor& mean, const Tensor& rstd, GpuStream stream) = 0;
  virtual void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                                   const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta,
                                   GpuStream stream) = 0;
  // As in host_kernels.hpp: of whole rows, or of heads.
  virtual void rms_norm_forward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                                const kernels::TokenHeads& y, const Tensor& rstd, GpuStream stream) = 0;
  virtual void rms_norm_backward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                                 const kernels::TokenHeads& dy, const kernels::TokenHeads& dx, bool adds,
                                 const Tensor& dgamma, GpuStream stream) = 0;
  virtual void rotary(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                      const kernels::TokenHeads& out, bool inverse, GpuStream stream) = 0;
  virtual void softmax(const Tensor& x, const Tensor& y, GpuStream stream) = 0;
  virtual void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                                     const Tensor& sum_exp, const Tensor& target_logit, GpuStream stream) = 0;
  virtual void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp,
                                    GpuStream stream) = 0;
  virtual void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                                      const Tensor& sum_exp, double factor, GpuStream stream) = 0;
  virtual void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y,
                                 GpuStream stream) = 0;
  virtual void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable,
                                  GpuStream stream) = 0;
  virtual void adamw(const kernels::AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
                     const Tensor& v, const Tensor& parameter, GpuStream stream) = 0;
  virtual void sgd(const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
                   const Tensor& parameter, GpuStream stream) = 0;
  virtual void gemm(const Tensor& a, kernels::Transpose transpose_a, const Tensor& b, kernels::Transpose transpose_b,
                    const Tensor& c, bool accumulate, GpuStream stream) = 0;
  // gemm and the functions below get no empty matrices. A GPU that cannot add the bias within the product adds it
  // afterwards.
  virtual void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, GpuStream stream) {
    gemm(x, kernels::Transpose::no, weight, kernels::Transpose::yes, y, false, stream);
    add_bias(y, bias, stream);
  }
  virtual void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu,
                           const Tensor& y, GpuStream stream) {
    gemm(x, kernels::Transpose::no, weight, kernels::Transpose::yes, before_gelu, false, stream);
    add_bias_gelu(before_gelu, bias, y, stream);
  }
  virtual void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual, const Tensor& y,
                          GpuStream stream) {
    linear(x, weight, bias, y, stream);
    const void* const both[] = {residual.raw(), y.raw()};
    reduce_all(ReduceOp::sum, y.dtype(), both, 2, y.raw(), y.size(), 1, stream);
  }
  virtual void linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx,
                                    GpuStream stream) {
    gemm(dy, kernels::Transpose::no, weight, kernels::Transpose::no, dx, false, stream);
    gelu_backward(before_gelu, dx, dx, stream);
  }
  virtual void attention_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                 const Tensor& log_sum_exp, GpuStream stream) = 0;
  virtual void attention_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                  const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, GpuStream stream) = 0;
  virtual void attention_block_forward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                                       const kernels::TokenHeads& k, const kernels::TokenHeads& v,
                                       const kernels::TokenHeads& out, const Tensor& log_sum_exp, bool merge,
                                       GpuStream stream) = 0;
  virtual void attention_block_backward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                                        const kernels::TokenHeads& k, const kernels::TokenHeads& v,
                                        const kernels::TokenHeads& out, const Tensor& log_sum_exp,
                                        const kernels::TokenHeads& dout, const kernels::TokenHeads& dq,
                                        const kernels::TokenHeads& dk, const kernels::TokenHeads& dv,
                                        const kernels::AttentionSums& sums, GpuStream stream) = 0;
};

}  // namespace stretto
