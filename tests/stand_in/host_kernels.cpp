#include "stand_in/host_kernels.hpp"

#include <vector>

#include "device/cpu/host_kernels.hpp"
#include "stand_in/host_gpu.hpp"

namespace stretto {
namespace {

const Tensor as_host(const Tensor& tensor) { return tensor.borrowed_as(Device::cpu); }
const kernels::TokenHeads as_host(kernels::TokenHeads heads) {
  heads.tensor = as_host(heads.tensor);
  return heads;
}
template <class Other>
const Other& as_host(const Other& other) {
  return other;
}

std::size_t bytes_of(DType dtype, std::int64_t count) { return static_cast<std::size_t>(count) * size_of(dtype); }

std::size_t packed(QuantizedFormat format, std::int64_t count) {
  return static_cast<std::size_t>(packed_bytes(format, count));
}

}  // namespace

void HostKernels::require_memory(const char* kernel, const void* first, std::size_t bytes) {
  gpu_.require_memory(kernel, first, bytes);
}

template <class Call, class... Arguments>
void HostKernels::put(const char* kernel, GpuStream stream, Call call, const Arguments&... arguments) {
  const auto check = [&]<class Argument>(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, Tensor>) require_memory(kernel, argument.raw(), argument.bytes());
    if constexpr (std::is_same_v<Argument, kernels::TokenHeads>)
      require_memory(kernel, argument.tensor.raw(), argument.tensor.bytes());
  };
  (check(arguments), ...);
  gpu_.put(stream, [call, ... kept = as_host(arguments)] { call(kept...); });
}

// ---- Kernels of collectives

void HostKernels::reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                             std::int64_t count, std::int64_t divisor, GpuStream stream) {
  for (int i = 0; i < source_count; ++i) require_memory("reduce_all", sources[i], bytes_of(dtype, count));
  require_memory("reduce_all", out, bytes_of(dtype, count));
  gpu_.put(stream, [=, kept = std::vector<const void*>(sources, sources + source_count)] {
    kernels::reduce_all(op, dtype, kept.data(), source_count, out, count, divisor);
  });
}

void HostKernels::multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor, GpuStream stream) {
  require_memory("multiply", x, bytes_of(dtype, count));
  require_memory("multiply", out, bytes_of(dtype, count));
  gpu_.put(stream, [=] { kernels::multiply(dtype, x, out, count, factor); });
}

void HostKernels::convert(DType from, const void* x, DType to, void* out, std::int64_t count, GpuStream stream) {
  require_memory("convert", x, bytes_of(from, count));
  require_memory("convert", out, bytes_of(to, count));
  gpu_.put(stream, [=] { kernels::convert(from, x, to, out, count); });
}

void HostKernels::quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                           const kernels::QuantizeOptions& options, GpuStream stream) {
  require_memory("quantize", x, bytes_of(dtype, count));
  require_memory("quantize", records, packed(format, count));
  if (options.residual != nullptr) require_memory("quantize", options.residual, bytes_of(DType::f32, count));
  gpu_.put(stream, [=] { kernels::quantize(format, dtype, x, records, count, options); });
}

void HostKernels::dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count,
                             GpuStream stream) {
  require_memory("dequantize", records, packed(format, count));
  require_memory("dequantize", out, bytes_of(dtype, count));
  gpu_.put(stream, [=] { kernels::dequantize(format, records, dtype, out, count); });
}

void HostKernels::dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                                    void* out, std::int64_t count, std::int64_t divisor, GpuStream stream) {
  for (int i = 0; i < vector_count; ++i) require_memory("dequantize_reduce", vectors[i], packed(format, count));
  require_memory("dequantize_reduce", out, bytes_of(dtype, count));
  gpu_.put(stream, [=, kept = std::vector<const void*>(vectors, vectors + vector_count)] {
    kernels::dequantize_reduce(format, kept.data(), vector_count, dtype, out, count, divisor);
  });
}

void HostKernels::requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                             void* records, std::int64_t count, std::int64_t divisor,
                             const kernels::QuantizeOptions& options, GpuStream stream) {
  for (int i = 0; i < vector_count; ++i) require_memory("requantize", vectors[i], packed(format, count));
  require_memory("requantize", records, packed(to, count));
  if (options.residual != nullptr) require_memory("requantize", options.residual, bytes_of(DType::f32, count));
  gpu_.put(stream, [=, kept = std::vector<const void*>(vectors, vectors + vector_count)] {
    kernels::requantize(format, kept.data(), vector_count, to, records, count, divisor, options);
  });
}

void HostKernels::store_values(StoredFormat format, const Tensor& values, const Tensor& records, GpuStream stream) {
  put("store_values", stream, kernels::store_values, format, values, records);
}

void HostKernels::restore_values(StoredFormat format, const Tensor& records, const Tensor& values, GpuStream stream) {
  put("restore_values", stream, kernels::restore_values, format, records, values);
}

// ---- Kernels of layers

void HostKernels::add(const Tensor& a, const Tensor& b, const Tensor& out, GpuStream stream) {
  put("add", stream, kernels::add, a, b, out);
}

void HostKernels::scale(const Tensor& x, double factor, GpuStream stream) {
  put("scale", stream, kernels::scale, x, factor);
}

void HostKernels::sums_of_squares(const std::vector<Tensor>& xs, double* sums, GpuStream stream) {
  require_memory("sums_of_squares", sums, xs.size() * sizeof *sums);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    put(
        "sums_of_squares", stream, [sum = sums + i](const Tensor& x) { *sum = kernels::sum_of_squares(x); }, xs[i]);
  }
}

void HostKernels::gelu_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  put("gelu_forward", stream, kernels::gelu_forward, x, y);
}

void HostKernels::gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  put("gelu_backward", stream, kernels::gelu_backward, x, dy, dx);
}

void HostKernels::gelu_erf_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  put("gelu_erf_forward", stream, kernels::cpu::gelu_erf_forward, x, y);
}

void HostKernels::gelu_erf_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  put("gelu_erf_backward", stream, kernels::cpu::gelu_erf_backward, x, dy, dx);
}

void HostKernels::silu_gate_forward(const Tensor& x, const Tensor& y, GpuStream stream) {
  put("silu_gate_forward", stream, kernels::cpu::silu_gate_forward, x, y);
}

void HostKernels::silu_gate_backward(const Tensor& x, const Tensor& dy, const Tensor& dx, GpuStream stream) {
  put("silu_gate_backward", stream, kernels::cpu::silu_gate_backward, x, dy, dx);
}

void HostKernels::add_bias(const Tensor& x, const Tensor& bias, GpuStream stream) {
  put("add_bias", stream, kernels::add_bias, x, bias);
}

void HostKernels::add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y, GpuStream stream) {
  put("add_bias_gelu", stream, kernels::add_bias_gelu, x, bias, y);
}

void HostKernels::add_column_sums(const Tensor& x, const Tensor& sums, GpuStream stream) {
  put("add_column_sums", stream, kernels::add_column_sums, x, sums);
}

void HostKernels::layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                                     const Tensor& y, const Tensor& mean, const Tensor& rstd, GpuStream stream) {
  put("layer_norm_forward", stream, kernels::layer_norm_forward, x, gamma, beta, epsilon, y, mean, rstd);
}

void HostKernels::layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                                      const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta,
                                      GpuStream stream) {
  put("layer_norm_backward", stream, kernels::layer_norm_backward, x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
}

void HostKernels::rms_norm_forward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                                   const kernels::TokenHeads& y, const Tensor& rstd, GpuStream stream) {
  put("rms_norm_forward", stream, kernels::cpu::rms_norm_forward, x, heads, gamma, epsilon, y, rstd);
}

void HostKernels::rms_norm_backward(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma,
                                    const Tensor& rstd, const kernels::TokenHeads& dy, const kernels::TokenHeads& dx,
                                    bool adds, const Tensor& dgamma, GpuStream stream) {
  put("rms_norm_backward", stream, kernels::cpu::rms_norm_backward, x, heads, gamma, rstd, dy, dx, adds, dgamma);
}

void HostKernels::rotary(const kernels::TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                         const kernels::TokenHeads& out, bool inverse, GpuStream stream) {
  put("rotary", stream, kernels::cpu::rotary, x, heads, positions, table, out, inverse);
}

void HostKernels::dropout(const kernels::Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out,
                          GpuStream stream) {
  put("dropout", stream, kernels::dropout, options, x, draws, out);
}

void HostKernels::softmax(const Tensor& x, const Tensor& y, GpuStream stream) {
  put("softmax", stream, kernels::softmax, x, y);
}

void HostKernels::cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                        const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit,
                                        GpuStream stream) {
  put("cross_entropy_forward", stream, kernels::cross_entropy_forward, logits, targets, first, row_max, sum_exp,
      target_logit);
}

void HostKernels::cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp,
                                       GpuStream stream) {
  put("cross_entropy_rebase", stream, kernels::cross_entropy_rebase, share_max, row_max, sum_exp);
}

void HostKernels::cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                         const Tensor& row_max, const Tensor& sum_exp, double factor, GpuStream stream) {
  put("cross_entropy_backward", stream, kernels::cross_entropy_backward, logits, targets, first, row_max, sum_exp, factor);
}

void HostKernels::embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y,
                                    GpuStream stream) {
  put("embedding_forward", stream, kernels::embedding_forward, tokens, first, table, y);
}

void HostKernels::embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable,
                                     GpuStream stream) {
  put("embedding_backward", stream, kernels::embedding_backward, tokens, first, dy, dtable);
}

void HostKernels::adamw(const kernels::AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
                        const Tensor& v, const Tensor& parameter, GpuStream stream) {
  put("adamw", stream, kernels::adamw, options, gradient, master, m, v, parameter);
}

void HostKernels::sgd(const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
                      const Tensor& parameter, GpuStream stream) {
  put("sgd", stream, kernels::sgd, options, gradient, master, b, parameter);
}

void HostKernels::gemm(const Tensor& a, kernels::Transpose transpose_a, const Tensor& b, kernels::Transpose transpose_b,
                       const Tensor& c, bool accumulate, GpuStream stream) {
  put("gemm", stream, kernels::gemm, a, transpose_a, b, transpose_b, c, accumulate);
}

void HostKernels::attention_forward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                    const Tensor& log_sum_exp, GpuStream stream) {
  put("attention_forward", stream, kernels::attention_forward, shape, qkv, out, log_sum_exp);
}

void HostKernels::attention_backward(const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                     const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv, GpuStream stream) {
  put("attention_backward", stream, kernels::attention_backward, shape, qkv, out, log_sum_exp, dout, dqkv);
}

void HostKernels::attention_block_forward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                                          const kernels::TokenHeads& k, const kernels::TokenHeads& v,
                                          const kernels::TokenHeads& out, const Tensor& log_sum_exp, bool merge,
                                          GpuStream stream) {
  put("attention_block_forward", stream, kernels::attention_block_forward, block, q, k, v, out, log_sum_exp, merge);
}

void HostKernels::attention_block_backward(const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                                           const kernels::TokenHeads& k, const kernels::TokenHeads& v,
                                           const kernels::TokenHeads& out, const Tensor& log_sum_exp,
                                           const kernels::TokenHeads& dout, const kernels::TokenHeads& dq,
                                           const kernels::TokenHeads& dk, const kernels::TokenHeads& dv,
                                           const kernels::AttentionSums& sums, GpuStream stream) {
  put("attention_block_backward", stream, kernels::attention_block_backward, block, q, k, v, out, log_sum_exp, dout, dq, dk,
      dv, sums);
}

}  // namespace stretto
