#pragma once
#include <cstdint>

#include "stretto/dtype.hpp"
#include "stretto/quantization.hpp"
#include "stretto/tensor.hpp"

// The arithmetic of a transformer on the host: what layers call and other trainers may call too. Every function runs in
// the calling thread (matrix products may use STRETTO_COMPUTE_THREADS threads), keeps no state, and picks the widest
// vector instructions of the processor at run time (Highway). Matrices are row-major tensors; "rows" are all dimensions
// but the last taken together. "f" below stands for a compute type: f64, f32 or bf16. Statistics and accumulators are f64
// for f64 and f32 otherwise ("the accumulator type"); bf16 results are rounded once, at the end. Shapes and types that do
// not fit together throw Error(invalid_argument) naming them.
namespace stretto::kernels {

// The type in which sums over f are kept, and in which gradients of f parameters are stored.
constexpr DType accumulator(DType f) { return f == DType::f64 ? DType::f64 : DType::f32; }

// ---- element-wise (reduce.cpp, elementwise.cpp, gelu.cpp, sums.cpp). out may be any of the inputs, but
// where it says otherwise. What becomes of an element does not depend on where in a buffer it lies.

// The passes of collectives, from reduce to convert, at any alignment: copy over bytes, convert over count elements of a
// floating-point type, the others of any type. Narrow floats (16 and 8 bits) compute in f32 and round once at the end;
// integers wrap. The min and max of NaN and anything is NaN, like their sum. A dtype or op outside its enumeration throws
// Error(invalid_argument).
// out[i] = a[i] op b[i]; avg and premul_sum add, as sum does. Reads 2, writes 1.
STRETTO_API void reduce(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count);
// out[i] = (((sources[0][i] op sources[1][i]) op ...) op sources[source_count-1][i]) / divisor. Reads each once, writes 1.
// out may be any of the sources. Narrow floats are divided before they are rounded; integers wrap first and are divided
// then.
STRETTO_API void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                            std::int64_t count, std::int64_t divisor = 1);
// The same, written to every one of the outs. An out may be the same memory as a source, at the same place; else outs
// overlap neither sources nor each other. streaming: past the caches (non-temporal stores), for what nobody reads soon;
// visible to whoever is told of it by a release afterwards.
STRETTO_API void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* const* outs,
                            int out_count, std::int64_t count, std::int64_t divisor, bool streaming);
// memcpy, and the same past the caches. They must not overlap.
STRETTO_API void copy(const void* from, void* to, std::size_t bytes, bool streaming);
// x[i] /= divisor, in place; integers round towards zero. A divisor is at least 1.
STRETTO_API void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor);
// out[i] = x[i] * factor; integers multiply by the factor rounded to their type, which it must fit.
STRETTO_API void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor);
// out[i] = x[i], for any two floating-point types, rounded to nearest even where the type narrows (f64 to 16 and 8 bits: by
// way of f32). x and out must not overlap.
STRETTO_API void convert(DType from, const void* x, DType to, void* out, std::int64_t count);

// ---- quantization (quantize.cpp; formats and records: quantization.hpp). x and out are of f32, bf16 or f16, at any
// alignment, as records are. The vector code gives the same bits as the plain one that is used where there is none.

struct QuantizeOptions {
  Rounding rounding = Rounding::nearest_even;
  // Of stochastic rounding: 15 (int8) or 16 bits (int4) of a hash of the seed and the element's number (first_element + i)
  // decide. The expectation is off by 2^-16 of the scale at most. Vectors are to be cut at whole groups.
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;
  // Error feedback: x + residual is quantized, and what that leaves out becomes the residual; of count elements.
  float* residual = nullptr;
};
// The records of count elements; the last is filled with zeros. For each of them but in fp8 and onebit, |x - code * scale|
// <= scale / 2 (below scale where rounding is stochastic). Reads x twice, the second time from the cache.
STRETTO_API void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                          const QuantizeOptions& options = {});
STRETTO_API void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count);
// out[i] = (((x0[i] + x1[i]) + ...) + xk[i]) / divisor in f32, where xj is what the j-th vector of records stands for;
// rounded once to out's type. Reads each once, writes 1.
STRETTO_API void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                                   void* out, std::int64_t count, std::int64_t divisor = 1);
// The same sum quantized again, without going through memory.
STRETTO_API void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                            void* records, std::int64_t count, std::int64_t divisor = 1,
                            const QuantizeOptions& options = {});

// The same of tensors with the same number of elements.
STRETTO_API void convert(const Tensor& from, const Tensor& out);
STRETTO_API void add(const Tensor& a, const Tensor& b, const Tensor& out);
STRETTO_API void scale(const Tensor& x, double factor);  // in place
// Sum of the squares of all elements, accumulated in f64 in a fixed order. Of tensors on a GPU these wait for the results:
// the second for those of many tensors once.
STRETTO_API double sum_of_squares(const Tensor& x);
STRETTO_API std::vector<double> sums_of_squares(const std::vector<Tensor>& xs);

// GELU in GPT-2's tanh form ("gelu_new"; Hendrycks & Gimpel 2016): y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
STRETTO_API void gelu_forward(const Tensor& x, const Tensor& y);
STRETTO_API void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);

// x[row] += bias for every row, in place.
STRETTO_API void add_bias(const Tensor& x, const Tensor& bias);
// The same fused with GELU, one pass over memory: x[row] += bias in place (kept for backward), y = gelu(x).
STRETTO_API void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y);
// sums[c] += sum over rows of x[row][c]; sums in the accumulator type. The gradient of a bias.
STRETTO_API void add_column_sums(const Tensor& x, const Tensor& sums);

// ---- rows (layer_norm.cpp, softmax.cpp)

// y = (x - mean) * rstd * gamma + beta over each row (Ba et al. 2016). x, y: f [rows, columns]; gamma, beta: f [columns];
// mean, rstd: accumulator type [rows], kept for backward.
STRETTO_API void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                                    const Tensor& y, const Tensor& mean, const Tensor& rstd);
// dx += the gradient with respect to x (it adds: the residual path has already written its share); dgamma and dbeta, in
// the accumulator type, are added to as well.
STRETTO_API void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                                     const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta);

// y = softmax of each row of x; y may be x.
STRETTO_API void softmax(const Tensor& x, const Tensor& y);

// ---- cross entropy over a vocabulary of which this rank holds the columns [first, first + columns) (cross_entropy.cpp;
// Shoeybi et al. 2019). logits: f [rows, columns]; targets: global token numbers, one a row; all others: accumulator
// type [rows]. The logits are read once forward, and once, and written, backward.
//
// row_max: the largest logit of each row, -infinity where there are no columns; sum_exp: of exp(logit - row_max);
// target_logit: 0 where the target is not among these columns.
STRETTO_API void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                       const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit);
// Where ranks hold shares of the columns: sum_exp becomes what forward had said of it, had row_max, the largest of all
// shares (by all_reduce), been this share's. Then sum_exp and target_logit are summed over the ranks.
STRETTO_API void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp);
// logits become their gradient, in place: (exp(logit - row_max) / sum_exp - [column is the target]) * factor.
// loss of a row = log(sum_exp) + row_max - target_logit.
STRETTO_API void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                        const Tensor& row_max, const Tensor& sum_exp, double factor);

// ---- embedding (embedding.cpp). table: f [vocabulary share, columns], this rank's rows [first, first + share).

// y[row] = table[token - first] where this rank holds the token, else zero.
STRETTO_API void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y);
// dtable[token - first] += dy[row], in row order; dtable in the accumulator type.
STRETTO_API void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable);

// ---- optimizer (adamw.cpp)

struct AdamW {  // decoupled weight decay (Loshchilov & Hutter 2017); step counts from 1
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  std::int64_t step = 1;
  double gradient_scale = 1;  // multiplies the gradient first: clipping
};
// One fused pass. master, m, v, gradient: one accumulator type; parameter: f. When f is that accumulator type, parameter and
// master are the same tensor; otherwise parameter is master rounded to f. Same order of operations at every vector
// width: p -= lr * weight_decay * p; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr * (m/c1) / (sqrt(v/c2) + eps),
// where c1 = 1 - b1^step and c2 = 1 - b2^step. torch.optim.AdamW computes the same.
STRETTO_API void adamw(const AdamW& options, const Tensor& gradient, const Tensor& master, const Tensor& m, const Tensor& v,
                       const Tensor& parameter);

// ---- matrix products (gemm.cpp): oneDNN for f32 and bf16, OpenBLAS for f64, chosen by measurement

enum class Transpose : bool { no = false, yes = true };
// c = op(a) op(b) + (accumulate ? c : 0); op(a): [m, k], op(b): [k, n], c: [m, n] (leading dimensions flattened into rows).
// a and b: f; c: f or the accumulator type (gradients of bf16 weights accumulate in f32).
STRETTO_API void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c,
                      bool accumulate = false);
// y = x weight^T + bias for every row. x: f [rows, in]; weight: f [out, in]; bias: f, out elements; y: f [rows, out]. The
// host rounds the product to f before it adds the bias; a GPU may round once, behind it.
STRETTO_API void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
// The same fused with GELU: before_gelu = x weight^T + bias (kept for backward), y = gelu(before_gelu), both f [rows, out].
// A GPU may apply GELU before it rounds.
STRETTO_API void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& before_gelu,
                             const Tensor& y);

// y = residual + x weight^T + bias, with the other tensors as of linear. residual: f [rows, out], other memory than y. The
// host rounds after each of the three; a GPU may round once.
STRETTO_API void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                            const Tensor& y);
// dx = (dy weight) gelu'(before_gelu): backward through a linear layer and the GELU before it. dy: f [rows, out]; weight: f
// [out, in]; before_gelu, dx: f [rows, in], not the same memory. The host rounds the product; a GPU may round once.
STRETTO_API void linear_backward_gelu(const Tensor& dy, const Tensor& weight, const Tensor& before_gelu, const Tensor& dx);

// ---- causal attention (attention.cpp), after FlashAttention (Dao et al. 2022): blocks of the s x s score matrix are made,
// used and forgotten; what remains is one log-sum-exp per row, from which backward recomputes the blocks. That log-sum-exp
// is what ring attention needs to merge partial results. On a GPU, cuDNN attends in bf16 where it was found and takes the
// tensors, and else kernels of the library, with heads of up to 256 elements; STRETTO_LOG=info says where cuDNN refuses.

struct AttentionShape {
  std::int64_t batch, sequence, heads, head_size;
};
// qkv: f [batch * sequence, 3 * heads * head_size]: q, k and v of a token after each other, each split into heads.
// out: f [batch * sequence, heads * head_size]; log_sum_exp: accumulator type [batch, heads, sequence], of the scaled
// scores. Scores are scaled by 1/sqrt(head_size); token i sees tokens 0..i of its own sequence.
STRETTO_API void attention_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                   const Tensor& log_sum_exp);
STRETTO_API void attention_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                    const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv);

}  // namespace stretto::kernels
