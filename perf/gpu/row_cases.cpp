#include <random>

#include "kernel_cases.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/rotary.hpp"

namespace perf {

using namespace stretto;
namespace k = stretto::kernels;

namespace {

Tensor tokens(std::int64_t count, std::int64_t vocabulary) {
  std::mt19937 generator(2);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  for (std::int32_t& number : numbers) {
    number = static_cast<std::int32_t>(generator() % static_cast<std::uint64_t>(vocabulary));
  }
  return Tensor::of(numbers);
}

std::vector<Case> layer_norm(std::int64_t rows, std::int64_t columns, DType dtype) {
  const double matrix = static_cast<double>(rows * columns) * element_bytes(dtype);
  const double statistics = 2.0 * static_cast<double>(rows) * element_bytes(k::accumulator(dtype));
  const double weights = 2.0 * static_cast<double>(columns) * element_bytes(dtype);
  const double sums = 4.0 * static_cast<double>(columns) * element_bytes(k::accumulator(dtype));  // bytes read and written
  const std::string what = times(rows, columns) + ", " + name(dtype);
  const DType wide = k::accumulator(dtype);
  return {{"layer_norm_forward", what, 2 * matrix + statistics + weights, 0,
           [=] {
             const Tensor x = random({rows, columns}, dtype);
             const Tensor gamma = random({columns}, dtype);
             const Tensor beta = random({columns}, dtype);
             const Tensor y({rows, columns}, dtype);
             const Tensor mean({rows}, wide);
             const Tensor rstd({rows}, wide);
             return [=] { k::layer_norm_forward(x, gamma, beta, 1e-5, y, mean, rstd); };
           }},
          {"layer_norm_backward", what, 4 * matrix + statistics + weights / 2 + sums, 0, [=] {
             const Tensor x = random({rows, columns}, dtype);
             const Tensor gamma = random({columns}, dtype);
             const Tensor y({rows, columns}, dtype);
             const Tensor mean({rows}, wide);
             const Tensor rstd({rows}, wide);
             k::layer_norm_forward(x, gamma, gamma, 1e-5, y, mean, rstd);
             const Tensor dy = random({rows, columns}, dtype);
             const Tensor dx = Tensor::zeros({rows, columns}, dtype);
             const Tensor dgamma = Tensor::zeros({columns}, wide);
             const Tensor dbeta = Tensor::zeros({columns}, wide);
             return [=] { k::layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta); };
           }}};
}

// Norms of heads of `columns` elements, as many as `heads` in a row; of rows if there is one.
std::vector<Case> rms_norm(std::int64_t rows, std::int64_t heads, std::int64_t columns, DType dtype) {
  const double matrix = static_cast<double>(rows * heads * columns) * element_bytes(dtype);
  const double statistics = static_cast<double>(rows * heads) * element_bytes(k::accumulator(dtype));
  const std::string what = times(rows, heads) + " x " + std::to_string(columns) + ", " + name(dtype);
  const Shape shape{rows, heads * columns};
  const DType wide = k::accumulator(dtype);
  return {
      {heads == 1 ? "rms_norm_forward" : "head_norm_forward", what, 2 * matrix + statistics, 0,
       [=] {
         const Tensor x = random(shape, dtype), gamma = random({columns}, dtype), y(shape, dtype);
         const Tensor rstd({rows, heads}, wide);
         return [=] { k::head_norm_forward({x}, heads, gamma, 1e-5, {y}, rstd); };
       }},
      {heads == 1 ? "rms_norm_backward" : "head_norm_backward", what, (heads == 1 ? 4 : 3) * matrix + statistics, 0, [=] {
         const Tensor x = random(shape, dtype), gamma = random({columns}, dtype), dx = Tensor::zeros(shape, dtype);
         const Tensor rstd({rows, heads}, wide), dy = random(shape, dtype), dgamma = Tensor::zeros({columns}, wide);
         k::head_norm_forward({x}, heads, gamma, 1e-5, {dx}, rstd);
         return [=] {
           if (heads == 1) return k::rms_norm_backward(x, gamma, rstd, dy, dx, dgamma);
           k::head_norm_backward({x}, heads, gamma, rstd, {dy}, {dx}, dgamma);
         };
       }}};
}

Case rotary(std::int64_t rows, std::int64_t heads, std::int64_t size, DType dtype) {
  const double matrix = static_cast<double>(rows * heads * size) * element_bytes(dtype);
  const std::string what = times(rows, heads) + " x " + std::to_string(size) + ", " + name(dtype);
  return {"rotary", what, 2 * matrix, 0, [=] {
            const Tensor x = random({rows, heads * size}, dtype), positions = tokens(rows, 4096);
            const Tensor table = rotary_table(rotary_frequencies(5e5, size), 4096, dtype);
            return [=] { k::rotary({x}, heads, positions, table, {x}); };
          }};
}

std::vector<Case> silu_gate(std::int64_t rows, std::int64_t columns, DType dtype) {
  const double matrix = static_cast<double>(rows * columns) * element_bytes(dtype);
  const std::string what = times(rows, columns) + ", " + name(dtype);
  constexpr auto gate = k::Activation::silu_gate;
  return {{"silu_gate_forward", what, 3 * matrix, 0,
           [=] {
             const Tensor x = random({rows, 2 * columns}, dtype), y({rows, columns}, dtype);
             return [=] { k::activation_forward(gate, x, y); };
           }},
          {"silu_gate_backward", what, 5 * matrix, 0, [=] {
             const Tensor x = random({rows, 2 * columns}, dtype), dx({rows, 2 * columns}, dtype);
             const Tensor dy = random({rows, columns}, dtype);
             return [=] { k::activation_backward(gate, x, dy, dx); };
           }}};
}

// The two passes over logits, and both one after the other.
std::vector<Case> cross_entropy(std::int64_t rows, std::int64_t vocabulary, DType dtype) {
  const double matrix = static_cast<double>(rows * vocabulary) * element_bytes(dtype);
  const std::string what = times(rows, vocabulary) + ", " + name(dtype);
  struct Buffers {
    Tensor logits, targets, max, sum, target;
  };
  const auto buffers = [=] {
    const DType wide = k::accumulator(dtype);
    Buffers made{random({rows, vocabulary}, dtype), tokens(rows, vocabulary), Tensor({rows}, wide), Tensor({rows}, wide),
                 Tensor({rows}, wide)};
    k::cross_entropy_forward(made.logits, made.targets, 0, made.max, made.sum, made.target);
    return made;
  };
  using Pass = std::function<void(const Buffers&)>;
  const Pass forward = [](const Buffers& b) { k::cross_entropy_forward(b.logits, b.targets, 0, b.max, b.sum, b.target); };
  const Pass backward = [](const Buffers& b) { k::cross_entropy_backward(b.logits, b.targets, 0, b.max, b.sum, 1.0); };
  const auto of = [&](const char* kernel, double passes, const Pass& pass) {
    return Case{kernel, what, passes * matrix, 0, [=] {
                  const Buffers made = buffers();
                  return [=] { pass(made); };
                }};
  };
  return {of("cross_entropy_forward", 1, forward), of("cross_entropy_backward", 2, backward),
          of("cross_entropy", 3, [=](const Buffers& b) {
            forward(b);
            backward(b);
          })};
}

std::vector<Case> gelu(std::int64_t rows, std::int64_t columns, DType dtype) {
  const double matrix = static_cast<double>(rows * columns) * element_bytes(dtype);
  const std::string what = times(rows, columns) + ", " + name(dtype);
  return {{"gelu_forward", what, 2 * matrix, 0,
           [=] {
             const Tensor x = random({rows, columns}, dtype);
             const Tensor y({rows, columns}, dtype);
             return [=] { k::gelu_forward(x, y); };
           }},
          {"gelu_backward", what, 3 * matrix, 0,
           [=] {
             const Tensor x = random({rows, columns}, dtype);
             const Tensor dy = random({rows, columns}, dtype);
             const Tensor dx({rows, columns}, dtype);
             return [=] { k::gelu_backward(x, dy, dx); };
           }},
          {"add_bias_gelu", what, 3 * matrix, 0, [=] {
             const Tensor x = random({rows, columns}, dtype);
             const Tensor bias = Tensor::zeros({columns}, dtype);
             const Tensor y({rows, columns}, dtype);
             return [=] { k::add_bias_gelu(x, bias, y); };
           }}};
}

Case adamw(std::int64_t parameters, DType dtype) {
  const DType wide = k::accumulator(dtype);
  const bool own_master = wide != dtype;
  // Gradient, master, m and v are read; master, m, v, and the parameter if it is another tensor, are written.
  const double bytes = static_cast<double>(parameters) * (7 * element_bytes(wide) + (own_master ? element_bytes(dtype) : 0));
  return {"adamw", std::to_string(parameters) + " parameters, " + name(dtype), bytes, 0, [=] {
            const Tensor gradient = random({parameters}, wide, 1e-3);
            const Tensor master = random({parameters}, wide);
            const Tensor m = Tensor::zeros({parameters}, wide);
            const Tensor v = Tensor::zeros({parameters}, wide);
            const Tensor parameter = own_master ? Tensor({parameters}, dtype) : master;
            return [=] { k::adamw({}, gradient, master, m, v, parameter); };
          }};
}

}  // namespace

std::vector<Case> row_cases() {
  constexpr std::int64_t rows = gpt2_rows;
  std::vector<Case> all;
  const auto add = [&](const std::vector<Case>& some) { all.insert(all.end(), some.begin(), some.end()); };
  add(layer_norm(4 * rows, 768, DType::bf16));
  add(layer_norm(rows, 4096, DType::bf16));
  add(layer_norm(4 * rows, 768, DType::f32));
  add(rms_norm(rows, 1, 4096, DType::bf16));
  add(rms_norm(rows, 32, 128, DType::bf16));
  add({rotary(rows, 32, 128, DType::bf16)});
  add(silu_gate(rows, 14336, DType::bf16));
  add(cross_entropy(rows / 2, gpt2_vocabulary, DType::bf16));
  add(gelu(rows, 3072, DType::bf16));
  add({adamw(124 << 20, DType::bf16), adamw(124 << 20, DType::f32)});
  return all;
}

}  // namespace perf
