#pragma once
#include <cstdint>

#include "stretto/attention_mask.hpp"
#include "stretto/dtype.hpp"
#include "stretto/quantization.hpp"
#include "stretto/tensor.hpp"

// The arithmetic of a transformer, for the layers and for other trainers. Functions keep no state. Functions on tensors
// run on the device of the tensors:
// - On the host, functions run in the calling thread and are done when they return; matrix products may use
//   STRETTO_COMPUTE_THREADS threads. The library uses the widest vector instructions that the processor has; it selects
//   them at run time (Highway).
// - On a GPU, functions put kernels into computation() (stretto/device.hpp) and return. Sums may be formed in another
//   order than on the host, but in the same order at each call.
// Functions on pointers accept host memory only.
//
// Matrices are row-major tensors; the last dimension is the columns, and all other dimensions together are the rows. "f"
// below stands for a compute type: f64, f32, bf16 or f16. The "accumulator type", used for statistics and sums, is f64
// for f64 and f32 otherwise. Results in 16 bits are rounded once, at the end; what is too large for f16 becomes infinite.
// On the host, activations in bf16 have a relative error of 1.4e-4 before they are rounded, and where the processor has
// AVX512_BF16, results of training that are subnormal in bf16 may be zero.
// If shapes or types do not fit together, or tensors are on different devices, a function throws
// Error(invalid_argument), whose text names them.
//
// Gradients of parameters have type f or the accumulator type. A function that adds to a gradient in 16 bits adds in f32
// and rounds each element once a call.
namespace stretto::kernels {

// The accumulator type of f.
constexpr DType accumulator(DType f) { return f == DType::f64 ? DType::f64 : DType::f32; }

// ---- element-wise. `out` may be any of the inputs unless noted otherwise. An element's result does not depend on its
// place in a buffer.

// The functions on pointers from here to convert() do the local work of collectives. Pointers may have any alignment.
// copy() works on bytes, convert() on floating-point types, the other functions on any type. Narrow floats (16 and 8
// bits) are computed in f32 and rounded once at the end; integers wrap around. If an input is NaN, the result is NaN,
// also for min and max. A dtype or op outside its enumeration throws Error(invalid_argument).

// out[i] = a[i] op b[i]. avg and premul_sum add, as sum does. The function reads 2 vectors and writes 1.
STRETTO_API void reduce(ReduceOp op, DType dtype, const void* a, const void* b, void* out, std::int64_t count);
// out[i] = (((sources[0][i] op sources[1][i]) op ...) op sources[source_count-1][i]) / divisor. `out` may be any of the
// sources. The function reads each source once and writes one vector. Narrow floats are divided before they are rounded;
// integers wrap around before they are divided.
STRETTO_API void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* out,
                            std::int64_t count, std::int64_t divisor = 1);
// Like the overload above, but writes the result to each of `outs`. An element of `outs` may be exactly the same memory
// as a source; otherwise outs must overlap neither sources nor each other. If `streaming`, the function writes past the
// caches (non-temporal stores), for results that are not read soon. Other threads see such results after a release store
// by the caller.
STRETTO_API void reduce_all(ReduceOp op, DType dtype, const void* const* sources, int source_count, void* const* outs,
                            int out_count, std::int64_t count, std::int64_t divisor, bool streaming);
// Like memcpy; if `streaming`, with non-temporal stores. `from` and `to` must not overlap.
STRETTO_API void copy(const void* from, void* to, std::size_t bytes, bool streaming);
// x[i] /= divisor, in place. Integers round towards zero. The divisor must be at least 1.
STRETTO_API void divide(DType dtype, void* x, std::int64_t count, std::int64_t divisor);
// out[i] = x[i] * factor. For an integer dtype, the factor is rounded to that type, and must be in its range.
STRETTO_API void multiply(DType dtype, const void* x, void* out, std::int64_t count, double factor);
// out[i] = x[i], between any two floating-point types. Conversion to a narrower type rounds to nearest even; f64 is
// converted to 16 and 8 bits through f32. x and out must not overlap.
STRETTO_API void convert(DType from, const void* x, DType to, void* out, std::int64_t count);

// ---- quantization (formats and records: quantization.hpp). Host memory at any alignment; x and out are f32, bf16 or
// f16. Vector instructions and scalar code give the same bits.

struct QuantizeOptions {
  Rounding rounding = Rounding::nearest_even;
  // For stochastic rounding. A hash of the seed and the element's number (first_element + i) decides whether the element
  // is rounded up or down. The hash has 15 random bits for int8 and 16 for int4, so the expected value is off by at most
  // 2^-16 of the scale. If a vector is quantized in several calls, each call but the last must have whole groups.
  std::uint64_t seed = 0;
  std::uint64_t first_element = 0;
  // Error feedback, `count` elements: x + residual is quantized, and the quantization error is written to residual.
  // Null: no error feedback.
  float* residual = nullptr;
};
// Writes the records of `count` elements; the last record is filled up with zeros. In int8 and int4, |x - code * scale|
// is at most scale / 2, and less than scale with stochastic rounding. The function reads x twice, the second time from
// the cache.
STRETTO_API void quantize(QuantizedFormat format, DType dtype, const void* x, void* records, std::int64_t count,
                          const QuantizeOptions& options = {});
STRETTO_API void dequantize(QuantizedFormat format, const void* records, DType dtype, void* out, std::int64_t count);
// out[i] = (((x0[i] + x1[i]) + ...) + xk[i]) / divisor in f32, rounded once to dtype, where xj is the dequantized j-th
// vector of records. The function reads each vector once and writes one.
STRETTO_API void dequantize_reduce(QuantizedFormat format, const void* const* vectors, int vector_count, DType dtype,
                                   void* out, std::int64_t count, std::int64_t divisor = 1);
// Like dequantize_reduce, but quantizes the sum to `records`. The unquantized sum is never written to memory.
STRETTO_API void requantize(QuantizedFormat format, const void* const* vectors, int vector_count, QuantizedFormat to,
                            void* records, std::int64_t count, std::int64_t divisor = 1,
                            const QuantizeOptions& options = {});

// Element-wise functions on tensors, which must have equal numbers of elements.
STRETTO_API void convert(const Tensor& from, const Tensor& out);
STRETTO_API void add(const Tensor& a, const Tensor& b, const Tensor& out);
STRETTO_API void scale(const Tensor& x, double factor);  // x *= factor, in place
// Copies columns [from_column, from_column + columns) of each row of `from` to the columns of `out` from out_column on. Both
// have equally many rows, and any one type; they must not overlap.
STRETTO_API void copy_columns(const Tensor& from, std::int64_t from_column, const Tensor& out, std::int64_t out_column,
                              std::int64_t columns);
// Which elements of a matrix are dropped: a hash of the number of its row, its own number and the column decides, so that
// parts of a matrix lose what the whole one loses, whatever they are cut along.
struct Dropout {
  double probability = 0;         // in [0, 1), in steps of 2^-32
  std::uint64_t number = 0;       // matrices of different numbers lose different elements
  std::int64_t first_column = 0;  // of x in the whole matrix, which has at most 2^32
};
// out[row][c] = x[row][c] / (1 - probability), or 0 times that where it is dropped. draws: i64 [rows], a random number for
// each row. The same function of the gradient of `out` is the backward pass.
STRETTO_API void dropout(const Dropout& options, const Tensor& x, const Tensor& draws, const Tensor& out);
// The sum of the squares of all elements, accumulated in f64 in a fixed order. For tensors on a GPU, the call blocks
// until the result is known; sums_of_squares blocks once for all its tensors.
STRETTO_API double sum_of_squares(const Tensor& x);
STRETTO_API std::vector<double> sums_of_squares(const std::vector<Tensor>& xs);

// GELU in GPT-2's tanh form ("gelu_new"; Hendrycks & Gimpel 2016): y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
STRETTO_API void gelu_forward(const Tensor& x, const Tensor& y);
STRETTO_API void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx);

// x[row] += bias for every row, in place.
STRETTO_API void add_bias(const Tensor& x, const Tensor& bias);
// Bias and GELU in one pass over memory: x[row] += bias in place (kept for backward), y = gelu(x).
STRETTO_API void add_bias_gelu(const Tensor& x, const Tensor& bias, const Tensor& y);

// The activation of an MLP, as data. A new one is an enumerator, its kernels, and their cases in
// device/kernels/activation.cpp.
enum class Activation : std::uint8_t {
  gelu_tanh,  // gelu_forward()
  gelu,       // x P(X <= x) for a normally distributed X, by the error function (Hendrycks & Gimpel 2016)
  silu_gate,  // silu(gate) * up, with silu(x) = x / (1 + exp(-x)): SwiGLU (Shazeer 2020). The gate's product comes first.
};
// The number of products that the activation joins to one result: 1, or 2 for one with a gate. They lie side by side in the
// rows of x, as one product with both weights leaves them.
constexpr int products_of(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
    case Activation::gelu: return 1;
    case Activation::silu_gate: return 2;
  }
  return 1;
}
// y = activation(x); x: f [rows, products_of(activation) * columns]; y: f [rows, columns]. y may be x if the activation has
// no gate.
STRETTO_API void activation_forward(Activation activation, const Tensor& x, const Tensor& y);
// dy: like y; dx: like x. dx may be dy if the activation has no gate, and x in any case.
STRETTO_API void activation_backward(Activation activation, const Tensor& x, const Tensor& dy, const Tensor& dx);

// The function that is applied to each element of a product: in the product's kernel or the pass that adds the bias, if
// there is such a kernel, and else after it. Empty: none.
struct Epilogue {
  Activation activation = Activation::gelu_tanh;
  Tensor activated = {};  // becomes the activation of the result, which is kept for backward
};
// The other way round: the gradient of what was activated becomes that of `before`, which was activated.
struct BackwardEpilogue {
  Activation activation = Activation::gelu_tanh;
  Tensor before = {};
};

// sums[c] += sum over rows of x[row][c]; sums: f or the accumulator type. This is the gradient of a bias.
STRETTO_API void add_column_sums(const Tensor& x, const Tensor& sums);

// ---- rows

// y = (x - mean) * rstd * gamma + beta over each row (Ba et al. 2016). x, y: f [rows, columns]; gamma, beta: f [columns];
// mean, rstd: accumulator type [rows], kept for backward.
STRETTO_API void layer_norm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, double epsilon,
                                    const Tensor& y, const Tensor& mean, const Tensor& rstd);
// Adds the gradients to dx, dgamma and dbeta; dx already holds the gradient of the residual path. dgamma and dbeta: both
// f or both the accumulator type.
STRETTO_API void layer_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& mean, const Tensor& rstd,
                                     const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta);

// y = gamma * round(x * rstd) over each row, with rstd = 1 / sqrt(mean of x^2 + epsilon) (Zhang & Sennrich 2019), where
// round() rounds to f, as in Llama. x, y: f [rows, columns]; y may be x. gamma: f [columns]; rstd: accumulator type [rows],
// kept for backward. Norms of single heads: head_norm_forward().
STRETTO_API void rms_norm_forward(const Tensor& x, const Tensor& gamma, double epsilon, const Tensor& y, const Tensor& rstd);
// Adds the gradients to dx and dgamma; dx already holds the gradient of the residual path. Both are those of the norm
// without round(). dgamma: f or the accumulator type.
STRETTO_API void rms_norm_backward(const Tensor& x, const Tensor& gamma, const Tensor& rstd, const Tensor& dy,
                                   const Tensor& dx, const Tensor& dgamma);

// y = softmax of each row of x; y may be x.
STRETTO_API void softmax(const Tensor& x, const Tensor& y);

// ---- cross entropy over a vocabulary that is divided over ranks (Shoeybi et al. 2019). This rank holds the columns
// [first, first + columns). logits: f [rows, columns]; targets: i32, the global token number of each row, or any number
// below 0 for a row that does not count: its logits are not read, its loss and its gradient are 0. All other tensors:
// accumulator type [rows]. Forward reads the logits once; backward reads and writes them once.

// Writes, for each row of this rank's columns: row_max, the largest logit, or -infinity if there are no columns;
// sum_exp, the sum of exp(logit - row_max); and target_logit, the logit of the target, or 0 if the target is not among
// these columns. Of a row that does not count they are 0, 1 and 0.
STRETTO_API void cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                       const Tensor& row_max, const Tensor& sum_exp, const Tensor& target_logit);
// sum_exp *= exp(share_max - row_max). If several ranks hold columns, call this function between forward and backward.
// share_max is forward's row_max on this rank, and row_max is the maximum of share_max over all ranks. After this call,
// the caller must sum sum_exp and target_logit over the ranks.
STRETTO_API void cross_entropy_rebase(const Tensor& share_max, const Tensor& row_max, const Tensor& sum_exp);
// Overwrites the logits with their gradient: (exp(logit - row_max) / sum_exp - t) * factor, where t is 1 in the target's
// column and 0 elsewhere. The loss of a row that counts is log(sum_exp) + row_max - target_logit.
STRETTO_API void cross_entropy_backward(const Tensor& logits, const Tensor& targets, std::int64_t first,
                                        const Tensor& row_max, const Tensor& sum_exp, double factor);

// ---- embedding. table: f [n, columns], the rows [first, first + n) of the whole table. tokens: i32, row numbers in the
// whole table.

// y[row] = table[token - first] if the table has that row, else zero.
STRETTO_API void embedding_forward(const Tensor& tokens, std::int64_t first, const Tensor& table, const Tensor& y);
// dtable[token - first] += dy[row], if the table has that row; on the host in row order. dtable: f or the accumulator
// type.
STRETTO_API void embedding_backward(const Tensor& tokens, std::int64_t first, const Tensor& dy, const Tensor& dtable);

// ---- optimizer

struct AdamWStep {  // decoupled weight decay (Loshchilov & Hutter 2017); step counts from 1
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  std::int64_t step = 1;
  double gradient_scale = 1;  // multiplies the gradient first, for example to clip it
};
// One fused pass of AdamW. parameter: f; gradient: f or the accumulator type of f; master, m and v: the accumulator type.
// If f is its own accumulator type, parameter and master must be the same tensor; otherwise parameter becomes master
// rounded to f. The order of operations is the same at every vector width: p -= lr * weight_decay * p; m = b1 m + (1-b1) g;
// v = b2 v + (1-b2) g^2; p -= lr * (m/c1) / (sqrt(v/c2) + eps), with c1 = 1 - b1^step and c2 = 1 - b2^step.
// torch.optim.AdamW computes the same.
STRETTO_API void adamw(const AdamWStep& options, const Tensor& gradient, const Tensor& master, const Tensor& m,
                       const Tensor& v, const Tensor& parameter);

struct SGDStep {
  double lr = 1e-3, momentum = 0.9, weight_decay = 0;
  double gradient_scale = 1;  // multiplies the gradient first, for example to clip it
};
// One fused pass of stochastic gradient descent: g += weight_decay p; b = momentum b + g; p -= lr b. Tensors as for adamw();
// `b` is the accumulator type, or empty if momentum is 0, and then p -= lr g. torch.optim.SGD computes the same.
STRETTO_API void sgd(const SGDStep& options, const Tensor& gradient, const Tensor& master, const Tensor& b,
                     const Tensor& parameter);

// ---- matrix products. The host uses oneDNN for f32 and 16-bit types and OpenBLAS for f64, chosen by measurement. f16,
// and bf16 on processors without instructions for it, cost f32 copies of the operands. A GPU uses cuBLASLt.

enum class Transpose : bool { no = false, yes = true };
// c = op(a) op(b) + (accumulate ? c : 0). op(a): [m, k], op(b): [k, n], c: [m, n]; leading dimensions are flattened
// into rows. a and b: f; c: f or the accumulator type, since gradients of 16-bit weights may accumulate in f32.
STRETTO_API void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b, const Tensor& c,
                      bool accumulate = false);
// y = x weight^T + bias for every row, and then the epilogue. x: f [rows, in]; weight: f [out, in]; bias: f [out], or empty
// for none; y: f [rows, out]. The host rounds the product to f before it adds the bias; a GPU may round once, after the
// bias, and may apply the activation before it rounds.
STRETTO_API void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                        const Epilogue& epilogue = {});
// Finishes linear() for a product that y already holds: adds the bias to each row in place, unless it is empty, and applies
// the epilogue, in one pass over memory where there is a kernel for both.
STRETTO_API void finish_linear(const Tensor& y, const Tensor& bias, const Epilogue& epilogue = {});
// Finishes linear_backward() for a product dy weight that is already there. dx may be the product, unless the activation has
// a gate.
STRETTO_API void finish_linear_backward(const Tensor& product, const Tensor& dx, const BackwardEpilogue& epilogue);
// linear() and a residual: y = residual + x weight^T + bias. residual: f [rows, out], not the same memory as y. The host
// rounds after each of the three terms; a GPU may round once.
STRETTO_API void linear_add(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& residual,
                            const Tensor& y);
// Backward through a linear layer, dx = dy weight, and through the activation before it: dx = (dy weight) *
// activation'(before). dy: f [rows, out]; weight: f [out, in]; dx, before: f [rows, in], or [rows, 2 * in] for an activation
// with a gate, which costs the memory of a product of [rows, in] meanwhile. dx and before must not be the same memory. The
// host rounds the product dy weight and then the result; a GPU may round only the result.
STRETTO_API void linear_backward(const Tensor& dy, const Tensor& weight, const Tensor& dx,
                                 const BackwardEpilogue& epilogue = {});

// ---- attention, after FlashAttention (Dao et al. 2022). The matrix of scores of queries and keys is computed in tiles,
// which are used at once and not stored. Forward stores one log-sum-exp per row, and backward computes the tiles again from
// it. Scores are scaled by 1/sqrt(head_size). Tiles that the mask leaves empty are skipped: nothing of them is computed.
//
// On a GPU, attention_forward and attention_backward in bf16 and f16 use cuDNN if the build has it and cuDNN accepts the
// tensors. Otherwise, and for blocks, attention uses kernels of the library, for heads of up to 256 elements.
// STRETTO_LOG=info reports where cuDNN does not accept the tensors. cuDNN's backward sums in no fixed order unless
// STRETTO_DETERMINISTIC=1.

// Causal attention of whole sequences: token i attends to tokens 0..i of its own sequence.
struct AttentionShape {
  std::int64_t batch, sequence, heads, head_size;
};
// qkv: f [batch * sequence, 3 * heads * head_size]; a row holds q, then k, then v of a token, each split into heads.
// out: f [batch * sequence, heads * head_size]. log_sum_exp: accumulator type [batch, heads, sequence], of the scaled
// scores. In bf16, processors with AVX512_BF16 round probabilities and gradients of scores before they multiply them, also
// where the results have the accumulator type (AttentionBlock).
STRETTO_API void attention_forward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                   const Tensor& log_sum_exp);
STRETTO_API void attention_backward(const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                                    const Tensor& log_sum_exp, const Tensor& dout, const Tensor& dqkv);

// Attention of a block: queries and keys from different places of their sequences, in different numbers, under any mask.
// Blocks of keys that together are the whole sequence give attention over the sequence, in any order (Liu et al. 2023).
struct AttentionBlock {
  std::int64_t batch, queries, keys, heads, head_size;  // queries and keys: of each sequence of the batch
  // Heads of keys and values, a divisor of `heads`: query head h uses head h / (heads / kv_heads) of them (grouped heads,
  // Ainslie et al. 2023). 0: as many as heads.
  std::int64_t kv_heads = 0;
  Positions query_positions, key_positions;
  AttentionMask mask;
  // Where documents follow each other in a sequence: the position at which the document of each query begins, [batch,
  // queries], on the device of the operands. The query then sees no key before it. Starts and positions must not decrease
  // from row to row, and the mask must be causal, without global positions. Null: a sequence is one document.
  const std::int32_t* starts = nullptr;
};

// The heads of tokens in the rows of a tensor: a row for each token, sequence after sequence. The heads lie side by side
// from first_column on, or in `parts` of equal length, which begin part_step columns apart: head h is then the (h /
// parts)-th of part h % parts. Packed qkv are three of these over one tensor.
struct TokenHeads {
  Tensor tensor;
  std::int64_t first_column = 0;
  std::int64_t parts = 1, part_step = 0;

  std::int64_t column(std::int64_t head, std::int64_t head_size) const {
    return first_column + head % parts * part_step + head / parts * head_size;
  }
};

// Attention of whole sequences over packed operands is attention_forward() and attention_backward(), with their bits.
//
// q, k, v: f. out: f or the accumulator type. log_sum_exp: accumulator type [batch, heads, queries]; -infinity, with zeros
// in out, for a query that sees no key. With `merge`, out and log_sum_exp hold attention over earlier blocks of keys, and
// become attention over those and this block's; a query that sees no key of this block keeps them bit by bit. out must then
// have the accumulator type, since rounding to 16 bits after each block would add up; convert() rounds the last result.
STRETTO_API void attention_block_forward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                         const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp,
                                         bool merge = false);

// What attention_block_backward adds to, instead of overwriting it: dq, which each block of keys adds to, and dk and dv,
// which each block of queries adds to. What is added to must have the accumulator type.
struct AttentionSums {
  bool queries = false, keys = false;
};
// The gradients over this block's pairs of queries and keys. out (f or the accumulator type) and log_sum_exp are the results
// over all blocks of keys. dout: f. dq, dk, dv: f or the accumulator type. Besides the products, the call costs a pass over
// out and dout for each block.
STRETTO_API void attention_block_backward(const AttentionBlock& block, const TokenHeads& q, const TokenHeads& k,
                                          const TokenHeads& v, const TokenHeads& out, const Tensor& log_sum_exp,
                                          const TokenHeads& dout, const TokenHeads& dq, const TokenHeads& dk,
                                          const TokenHeads& dv, const AttentionSums& sums = {});

// ---- the heads of tokens, before attention. Heads have as many elements as gamma, or twice the columns of the table.

// The RMS norm of each head by itself, as Qwen 3 takes it of queries and keys. x, y: f; y may be x. gamma: f [head_size];
// rstd: accumulator type [tokens, heads], kept for backward.
STRETTO_API void head_norm_forward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, double epsilon,
                                   const TokenHeads& y, const Tensor& rstd);
// Unlike rms_norm_backward(), writes dx, which may be dy. Adds to dgamma: f or the accumulator type.
STRETTO_API void head_norm_backward(const TokenHeads& x, std::int64_t heads, const Tensor& gamma, const Tensor& rstd,
                                    const TokenHeads& dy, const TokenHeads& dx, const Tensor& dgamma);

// Rotary positions (Su et al. 2021): turns the elements i and i + head_size / 2 of each head, as a point of a plane, by
// the angle of the i-th frequency at the token's position; by minus the angle if `inverse`, which is the backward pass.
// x, out: f; out may be x. positions: i32 [tokens], rows of the table; the host refuses others. table: accumulator type
// [positions, 2, head_size / 2], the cosines and then the sines of each position (rotary_table() in layers/rotary.hpp).
STRETTO_API void rotary(const TokenHeads& x, std::int64_t heads, const Tensor& positions, const Tensor& table,
                        const TokenHeads& out, bool inverse = false);

}  // namespace stretto::kernels
