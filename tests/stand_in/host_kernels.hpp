#pragma once
#include "device/gpu_kernels.hpp"

namespace stretto {

class HostGpu;

// The host's kernels, called in stream order by the stream's thread. Like a launch, a call copies numbers, arrays of
// pointers and options; it does not keep tensors alive.
class HostKernels final : public GpuKernels {
 public:
  explicit HostKernels(HostGpu& gpu) : gpu_(gpu) {}

  void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out, std::int64_t count,
                  std::int64_t divisor, GpuStream stream) override;
  void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor, GpuStream stream) override;
  void convert(DType from, const void* x, DType to, void* out, std::int64_t count, GpuStream stream) override;
  void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                const kernels::QuantizeOptions& options, GpuStream stream) override;
  void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count,
                  GpuStream stream) override;
  void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype, void* out,
                         std::int64_t count, std::int64_t divisor, GpuStream stream) override;
  void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to, void* records,
                  std::int64_t count, std::int64_t divisor, const kernels::QuantizeOptions& options,
                  GpuStream stream) override;
  void store_values(StoredFormat format, const Tensor& values, const Tensor& records, GpuStream stream) override;
  void restore_values(StoredFormat format, const Tensor& records, const Tensor& values, GpuStream stream) override;

  void add(const Tensor& a, const Tensor& b, const Tensor& out, GpuStream stream) override;
  void scale(const Tensor& x, double factor, GpuStream stream) override;
  void sums_of_squares(const std::vector<Tensor>& xs, double* sums, GpuStream stream) override;
  void gelu_forward(const Tensor& x, const Tensor& y, GpuStream stream) override;
  void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) override;
  void gelu_erf_forward(const Tensor& x, const Tensor& y, GpuStream stream) override;
  void gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) override;
  void silu_gate_forward(const Tensor& x, const Tensor& y, GpuStream stream) override;
  void silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) override;
  void dropout(const kernels::Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out,
               GpuStream stream) override;
  void add_bias(const Tensor& x, const Tensor& bias, GpuStream stream) override;
  void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y, GpuStream stream) override;
  void add_column_sums(const Tensor& x, const Tensor& sums, GpuStream stream) override;
  void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon, const Tensor& y,
                          const Tensor& mean, const Tensor& rstd, GpuStream stream) override;
  void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                           const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta, GpuStream stream) override;
  void rms_norm_forward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                        const kernels::TokenHeads& y, const Tensor& rstd, GpuStream stream) override;
  void rms_norm_backward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                         const kernels::TokenHeads& dy, const kernels::TokenHeads& dx, bool adds, const Tensor& dgamma,
                         GpuStream stream) override;
  void rotary(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
              const kernels::TokenHeads& out, bool inverse, GpuStream stream) override;
  void softmax(const Tensor& x, const Tensor& y, GpuStream stream) override;
  void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                             const Tensor& sum_exp, const Tensor& target_logit, GpuStream stream) override;
  void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp,
                            GpuStream stream) override;
  void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first, const Tensor& row_max,
                              const Tensor& sum_exp, double factor, GpuStream stream) override;
  void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y,
                         GpuStream stream) override;
  void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable,
                          GpuStream stream) override;
  void adamw(const kernels::AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
             const Tensor& v, const Tensor& parameter, GpuStream stream) override;
  void sgd(const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
           const Tensor& parameter, GpuStream stream) override;
  void gemm(const Tensor& a, kernels::Transpose transpose_a, const Tensor& b, kernels::Transpose transpose_b,
            const Tensor& c, bool accumulate, GpuStream stream) override;
  void attention_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                         const Tensor& log_sum_exp, GpuStream stream) override;
  void attention_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                          const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, GpuStream stream) override;
  void attention_block_forward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                               const kernels::TokenHeads& k, const kernels::TokenHeads& v, const kernels::TokenHeads& out,
                               const Tensor& log_sum_exp, bool merge, GpuStream stream) override;
  void attention_block_backward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                                const kernels::TokenHeads& k, const kernels::TokenHeads& v, const kernels::TokenHeads& out,
                                const Tensor& log_sum_exp, const kernels::TokenHeads& dout, const kernels::TokenHeads& dq,
                                const kernels::TokenHeads& dk, const kernels::TokenHeads& dv,
                                const kernels::AttentionSums& sums, GpuStream stream) override;

 private:
  // Puts call(argument, ...) into the stream; tensors are passed as host tensors of the same memory.
  template <class Call, class... Arguments>
  void put(const char* kernel, GpuStream stream, Call call, const Arguments&... arguments);
  void require_memory(const char* kernel, const void* first, std::size_t bytes);

  HostGpu& gpu_;
};

}  // namespace stretto
