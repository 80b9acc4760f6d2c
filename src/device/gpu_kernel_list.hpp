// The kernels on a GPU, which a class declares by including this in its body: no #pragma once.
// STRETTO_GPU_KERNEL(name, parameters...) says how; behind the parameters, each kernel has the stream.

// ---- of collectives: pointers into GPU memory, to elements at any alignment
STRETTO_GPU_KERNEL(reduce_all, ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                   std::int64_t count, std::int64_t divisor);
STRETTO_GPU_KERNEL(multiply, DType dtype, const void* x, void* out, std::int64_t count, double factor);
STRETTO_GPU_KERNEL(convert, DType from, const void* x, DType to, void* out, std::int64_t count);
STRETTO_GPU_KERNEL(quantize, QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                   const kernels::QuantizeOptions& options);
STRETTO_GPU_KERNEL(dequantize, QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count);
STRETTO_GPU_KERNEL(dequantize_reduce, QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                   void* out, std::int64_t count, std::int64_t divisor);
STRETTO_GPU_KERNEL(requantize, QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                   void* records, std::int64_t count, std::int64_t divisor, const kernels::QuantizeOptions& options);
STRETTO_GPU_KERNEL(store_values, StoredFormat format, const Tensor& values, const Tensor& records);
STRETTO_GPU_KERNEL(restore_values, StoredFormat format, const Tensor& records, const Tensor& values);

// ---- of layers
STRETTO_GPU_KERNEL(add, const Tensor& a, const Tensor& b, const Tensor& out);
STRETTO_GPU_KERNEL(scale, const Tensor& x, double factor);
// sums: one number for each tensor, in GPU memory.
STRETTO_GPU_KERNEL(sums_of_squares, const std::vector<Tensor>& xs, double* sums);
STRETTO_GPU_KERNEL(gelu_forward, const Tensor& x, const Tensor& y);
STRETTO_GPU_KERNEL(gelu_backward, const Tensor& x, const Tensor& dy, const Tensor& dx);
STRETTO_GPU_KERNEL(gelu_erf_forward, const Tensor& x, const Tensor& y);
STRETTO_GPU_KERNEL(gelu_erf_backward, const Tensor& x, const Tensor& dy, const Tensor& dx);
STRETTO_GPU_KERNEL(silu_gate_forward, const Tensor& x, const Tensor& y);
STRETTO_GPU_KERNEL(silu_gate_backward, const Tensor& x, const Tensor& dy, const Tensor& dx);
STRETTO_GPU_KERNEL(dropout, const kernels::Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out);
STRETTO_GPU_KERNEL(add_bias, const Tensor& x, const Tensor& bias);
STRETTO_GPU_KERNEL(add_bias_gelu, const Tensor& x, const Tensor& bias, const Tensor& y);
STRETTO_GPU_KERNEL(add_column_sums, const Tensor& x, const Tensor& sums);
STRETTO_GPU_KERNEL(layer_norm_forward, const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                   const Tensor& y, const Tensor& mean, const Tensor& rstd);
STRETTO_GPU_KERNEL(layer_norm_backward, const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                   const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta);
// As in host_kernels.hpp: of whole rows, or of heads.
STRETTO_GPU_KERNEL(rms_norm_forward, const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                   const kernels::TokenHeads& y, const Tensor& rstd);
STRETTO_GPU_KERNEL(rms_norm_backward, const kernels::TokenHeads& x, std::int64_t heads, const Tensor& gamma,
                   const Tensor& rstd, const kernels::TokenHeads& dy, const kernels::TokenHeads& dx, bool adds,
                   const Tensor& dgamma);
STRETTO_GPU_KERNEL(rotary, const kernels::TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                   const kernels::TokenHeads& out, bool inverse);
STRETTO_GPU_KERNEL(softmax, const Tensor& x, const Tensor& y);
STRETTO_GPU_KERNEL(cross_entropy_forward, const Tensor& logits, const Tensor& targets, std::int64_t first,
                   const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit);
STRETTO_GPU_KERNEL(cross_entropy_rebase, const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp);
STRETTO_GPU_KERNEL(cross_entropy_backward, const Tensor& logits, const Tensor& targets, std::int64_t first,
                   const Tensor& row_max, const Tensor& sum_exp, double factor);
STRETTO_GPU_KERNEL(embedding_forward, const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y);
STRETTO_GPU_KERNEL(embedding_backward, const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable);
STRETTO_GPU_KERNEL(adamw, const kernels::AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
                   const Tensor& v, const Tensor& parameter);
STRETTO_GPU_KERNEL(sgd, const kernels::SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
                   const Tensor& parameter);
STRETTO_GPU_KERNEL(gemm, const Tensor& a, kernels::Transpose transpose_a, const Tensor& b, kernels::Transpose transpose_b,
                   const Tensor& c, bool accumulate);
STRETTO_GPU_KERNEL(attention_forward, const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                   const Tensor& log_sum_exp);
STRETTO_GPU_KERNEL(attention_backward, const kernels::AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                   const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv);
STRETTO_GPU_KERNEL(attention_block_forward, const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                   const kernels::TokenHeads& k, const kernels::TokenHeads& v, const kernels::TokenHeads& out,
                   const Tensor& log_sum_exp, bool merge);
STRETTO_GPU_KERNEL(attention_block_backward, const kernels::AttentionBlock& block, const kernels::TokenHeads& q,
                   const kernels::TokenHeads& k, const kernels::TokenHeads& v, const kernels::TokenHeads& out,
                   const Tensor& log_sum_exp, const kernels::TokenHeads& dout, const kernels::TokenHeads& dq,
                   const kernels::TokenHeads& dk, const kernels::TokenHeads& dv, const kernels::AttentionSums& sums);
