#include "kernel_cases.hpp"
#include "stretto/kernels.hpp"

namespace perf {

using namespace stretto;
namespace k = stretto::kernels;
using k::Transpose;

namespace {

Case gemm(const std::string& what, std::int64_t m, std::int64_t n, std::int64_t inner, Transpose transpose_a,
          Transpose transpose_b, DType dtype_c) {
  const auto shape = [](std::int64_t rows, std::int64_t columns, Transpose transpose) {
    return transpose == Transpose::yes ? Shape{columns, rows} : Shape{rows, columns};
  };
  return {"gemm", what + ", " + times(m, n) + " x " + std::to_string(inner) + ", bf16 into " + name(dtype_c), 0,
          2.0 * static_cast<double>(m * n) * static_cast<double>(inner), [=] {
            const Tensor a = random(shape(m, inner, transpose_a), DType::bf16);
            const Tensor b = random(shape(inner, n, transpose_b), DType::bf16, 0.02);
            const Tensor c({m, n}, dtype_c);
            return [=] { k::gemm(a, transpose_a, b, transpose_b, c); };
          }};
}

// The products of a linear layer: forward, and backward for its input and for its weight.
std::vector<Case> layer_products(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {gemm("forward", rows, out, in, Transpose::no, Transpose::yes, DType::bf16),
          gemm("backward, input", rows, in, out, Transpose::no, Transpose::no, DType::bf16),
          gemm("backward, weight", out, in, rows, Transpose::yes, Transpose::no, DType::f32)};
}

std::vector<Case> linear(std::int64_t rows, std::int64_t in, std::int64_t out) {
  const double flops = 2.0 * static_cast<double>(rows * in) * static_cast<double>(out);
  const std::string what = times(rows, in) + " to " + std::to_string(out) + ", bf16";
  return {{"linear", what, 0, flops,
           [=] {
             const Tensor x = random({rows, in}, DType::bf16);
             const Tensor weight = random({out, in}, DType::bf16, 0.02);
             const Tensor bias = random({out}, DType::bf16);
             const Tensor y({rows, out}, DType::bf16);
             return [=] { k::linear(x, weight, bias, y); };
           }},
          {"linear_gelu", what, 0, flops, [=] {
             const Tensor x = random({rows, in}, DType::bf16);
             const Tensor weight = random({out, in}, DType::bf16, 0.02);
             const Tensor bias = random({out}, DType::bf16);
             const Tensor before({rows, out}, DType::bf16);
             const Tensor y({rows, out}, DType::bf16);
             return [=] { k::linear(x, weight, bias, before, {k::Activation::gelu_tanh, y}); };
           }}};
}

// Counts the operations on the half of the scores that the causal mask leaves: two products forward, five backward.
std::vector<Case> attention(const k::AttentionShape& shape, DType dtype) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const std::int64_t hidden = shape.heads * shape.head_size;
  const double product = static_cast<double>(shape.batch * shape.heads * shape.head_size) *
                         static_cast<double>(shape.sequence) * static_cast<double>(shape.sequence);
  const std::string what = std::to_string(shape.batch) + " x " + std::to_string(shape.sequence) + " tokens, " +
                           std::to_string(shape.heads) + " heads of " + std::to_string(shape.head_size) + ", " + name(dtype);
  struct Buffers {
    Tensor qkv, out, log_sum_exp, dout, dqkv;
  };
  const auto buffers = [=] {
    Buffers made{random({rows, 3 * hidden}, dtype), Tensor({rows, hidden}, dtype),
                 Tensor({shape.batch, shape.heads, shape.sequence}, k::accumulator(dtype)), random({rows, hidden}, dtype),
                 Tensor({rows, 3 * hidden}, dtype)};
    k::attention_forward(shape, made.qkv, made.out, made.log_sum_exp);
    return made;
  };
  return {{"attention_forward", what, 0, 2 * product,
           [=] {
             const Buffers b = buffers();
             return [=] { k::attention_forward(shape, b.qkv, b.out, b.log_sum_exp); };
           }},
          {"attention_backward", what, 0, 5 * product, [=] {
             const Buffers b = buffers();
             return [=] { k::attention_backward(shape, b.qkv, b.out, b.log_sum_exp, b.dout, b.dqkv); };
           }}};
}

}  // namespace

std::vector<Case> product_cases() {
  constexpr std::int64_t rows = gpt2_rows;
  std::vector<Case> all;
  const auto add = [&](const std::vector<Case>& some) { all.insert(all.end(), some.begin(), some.end()); };
  all.push_back(gemm("square", 8192, 8192, 8192, Transpose::no, Transpose::yes, DType::bf16));
  add(layer_products(rows, 768, 3 * 768));
  add(layer_products(rows, 768, 768));
  add(layer_products(rows, 768, 4 * 768));
  add(layer_products(rows, 4 * 768, 768));
  add(layer_products(rows, 768, gpt2_vocabulary));
  add(linear(rows, 768, 3 * 768));
  add(linear(rows, 768, 4 * 768));
  add(attention({32, 1024, 12, 64}, DType::bf16));
  return all;
}

}  // namespace perf
