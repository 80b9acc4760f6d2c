// The kernels of training that move memory more than they compute, beside plain loops that read and write as many bytes in
// the same mix. One thread; both sides in turn; medians. Sizes: one far beyond the caches, and the trainer's own in `./dev
// perf train` (1536 tokens, width 384), of which a part stays in a cache.
#include <functional>
#include <limits>
#include <random>
#include <utility>

#include "../gpu/gpu_data.hpp"
#include "memory_loop.hpp"
#include "speed.hpp"
#include "stretto/layers/rotary.hpp"

namespace {

using namespace stretto;
using memory_loop::Access;
using speed::median, speed::thread_seconds;

struct Size {
  const char* name;
  std::int64_t tokens, entries, parameters;
};
constexpr std::int64_t width = 384;
constexpr Size sizes[] = {{"memory", 1 << 17, 50257, width << 16}, {"trainer", 1536, 65, 4 * width* width}};

// A tensor that a kernel moves through, and how. With tokens, it moves through a row for each of them.
struct Moved {
  Access access;
  Tensor tensor;
  Tensor tokens = {};
};
struct Case {
  const char* kernel;
  std::vector<Moved> moved;
  std::function<void()> run;
};

Tensor random_tokens(std::int64_t count, std::int64_t entries) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  std::mt19937 generator(1);
  for (std::int32_t& number : numbers) number = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(entries));
  return Tensor::of(numbers);
}

Case adamw(const Size& size, DType dtype) {
  const Shape shape{size.parameters};
  const Tensor gradient = perf::random(shape, DType::f32, 1e-3), m = perf::random(shape, DType::f32, 1e-3);
  const Tensor v = Tensor::zeros(shape, DType::f32), master = perf::random(shape, DType::f32, 0.02);
  std::vector<Moved> moved{{Access::read, gradient}, {Access::update, master}, {Access::update, m}, {Access::update, v}};
  const bool narrow = dtype != DType::f32;
  const Tensor parameter = narrow ? Tensor(shape, dtype) : master;
  if (narrow) moved.push_back({Access::write, parameter});
  return {"AdamW", std::move(moved), [=] { kernels::adamw({.step = 10}, gradient, master, m, v, parameter); }};
}

std::vector<Case> layer_norm(const Size& size, DType dtype) {
  const Shape shape{size.tokens, width};
  const Tensor x = perf::random(shape, dtype), y(shape, dtype), gamma = perf::random({width}, dtype);
  const Tensor mean({size.tokens}, DType::f32), rstd({size.tokens}, DType::f32);
  const Tensor dy = perf::random(shape, dtype, 1e-3), dx = perf::random(shape, dtype, 1e-3);
  const Tensor dgamma = Tensor::zeros({width}, DType::f32), dbeta = Tensor::zeros({width}, DType::f32);
  kernels::layer_norm_forward(x, gamma, gamma, 1e-5, y, mean, rstd);
  return {{"layer norm, forward",
           {{Access::read, x}, {Access::write, y}},
           [=] { kernels::layer_norm_forward(x, gamma, gamma, 1e-5, y, mean, rstd); }},
          {"layer norm, backward", {{Access::read, x}, {Access::read, dy}, {Access::update, dx}}, [=] {
             kernels::layer_norm_backward(x, gamma, mean, rstd, dy, dx, dgamma, dbeta);
           }}};
}

// Heads of 64 elements, as queries have them, and positions of sequences of 1024 tokens.
constexpr std::int64_t head_size = 64, heads = width / head_size, sequence = 1024;

std::vector<Case> rms_norm(const Size& size, DType dtype) {
  const Shape shape{size.tokens, width};
  const Tensor x = perf::random(shape, dtype), y(shape, dtype), gamma = perf::random({width}, dtype);
  const Tensor of_head = gamma.view(0, {head_size}), rstd({size.tokens}, DType::f32),
               rstds({size.tokens, heads}, DType::f32);
  const Tensor dy = perf::random(shape, dtype, 1e-3), dx = perf::random(shape, dtype, 1e-3);
  const Tensor dgamma = Tensor::zeros({width}, DType::f32), of_heads = dgamma.view(0, {head_size});
  kernels::rms_norm_forward(x, gamma, 1e-5, y, rstd);
  kernels::head_norm_forward({x}, heads, of_head, 1e-5, {y}, rstds);
  const std::vector<Moved> forth{{Access::read, x}, {Access::write, y}};
  return {{"RMS norm, forward", forth, [=] { kernels::rms_norm_forward(x, gamma, 1e-5, y, rstd); }},
          {"RMS norm, backward",
           {{Access::read, x}, {Access::read, dy}, {Access::update, dx}},
           [=] { kernels::rms_norm_backward(x, gamma, rstd, dy, dx, dgamma); }},
          {"norm of heads, forward", forth, [=] { kernels::head_norm_forward({x}, heads, of_head, 1e-5, {y}, rstds); }},
          {"norm of heads, backward", {{Access::read, x}, {Access::read, dy}, {Access::write, dx}}, [=] {
             kernels::head_norm_backward({x}, heads, of_head, rstds, {dy}, {dx}, of_heads);
           }}};
}

std::vector<Case> rotary(const Size& size, DType dtype) {
  const Tensor x = perf::random({size.tokens, width}, dtype);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(size.tokens));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i % sequence);
  const Tensor positions = Tensor::of(numbers), table = rotary_table(rotary_frequencies(1e4, head_size), sequence, dtype);
  return {{"rotary, in place", {{Access::update, x}}, [=] { kernels::rotary({x}, heads, positions, table, {x}); }}};
}

std::vector<Case> silu_gate(const Size& size, DType dtype) {
  constexpr auto gate = kernels::Activation::silu_gate;
  const Tensor x = perf::random({size.tokens, 4 * width}, dtype), y({size.tokens, 2 * width}, dtype);
  const Tensor dy = perf::random({size.tokens, 2 * width}, dtype, 1e-3), dx({size.tokens, 4 * width}, dtype);
  return {{"SiLU gate, forward", {{Access::read, x}, {Access::write, y}}, [=] { kernels::activation_forward(gate, x, y); }},
          {"SiLU gate, backward", {{Access::read, x}, {Access::read, dy}, {Access::write, dx}}, [=] {
             kernels::activation_backward(gate, x, dy, dx);
           }}};
}

std::vector<Case> gelu(const Size& size, DType dtype) {
  const Shape shape{size.tokens, 4 * width};
  const Tensor x = perf::random(shape, dtype), y(shape, dtype), bias = Tensor::zeros({4 * width}, dtype);
  const Tensor dx = perf::random(shape, dtype, 1e-3);
  // Its derivative is 1: otherwise repeated calls would multiply the gradients until they are subnormal.
  const Tensor large = Tensor::zeros(shape, dtype), eights({4 * width}, dtype);
  for (std::int64_t i = 0; i < eights.size(); ++i) eights.set(i, 8);
  kernels::add_bias(large, eights);
  return {{"GELU, forward", {{Access::read, x}, {Access::write, y}}, [=] { kernels::gelu_forward(x, y); }},
          {"bias and GELU, forward", {{Access::update, x}, {Access::write, y}}, [=] { kernels::add_bias_gelu(x, bias, y); }},
          {"GELU, backward", {{Access::read, large}, {Access::update, dx}}, [=] { kernels::gelu_backward(large, dx, dx); }}};
}

std::vector<Case> embedding(const Size& size, DType dtype) {
  const Shape shape{size.tokens, width};
  const Tensor tokens = random_tokens(size.tokens, size.entries), table = perf::random({size.entries, width}, dtype);
  const Tensor y = perf::random(shape, dtype, 1e-3), dtable = Tensor::zeros({size.entries, width}, DType::f32);
  return {{"embedding, forward",
           {{Access::read, table, tokens}, {Access::write, y}},
           [=] { kernels::embedding_forward(tokens, 0, table, y); }},
          {"embedding, backward", {{Access::read, y}, {Access::update, dtable, tokens}}, [=] {
             kernels::embedding_backward(tokens, 0, y, dtable);
           }}};
}

nlohmann::ordered_json measure(const Case& what, const Size& size, DType dtype, int repetitions) {
  std::vector<Tensor> copies;  // the loop's own, from the same allocator
  std::vector<memory_loop::Array> arrays;
  double bytes = 0;
  for (const auto& [access, tensor, tokens] : what.moved) {
    copies.push_back(Tensor::zeros(tensor.shape(), tensor.dtype()));
    const std::size_t row = width * size_of(tensor.dtype());
    arrays.push_back({.access = access,
                      .data = static_cast<std::byte*>(copies.back().raw()),
                      .bytes = tokens ? static_cast<std::size_t>(tokens.size()) * row : tensor.bytes(),
                      .row_bytes = row,
                      .order = tokens ? tokens.data<std::int32_t>() : nullptr});
    bytes += static_cast<double>(arrays.back().moved());
  }
  const int calls = std::max(1, static_cast<int>(64e6 / bytes));
  const auto seconds = [&](const auto& run) {
    run();  // fills the caches
    const double from = thread_seconds();
    for (int call = 0; call < calls; ++call) run();
    return (thread_seconds() - from) / calls;
  };
  std::vector<double> kernel, loop, ratios;
  for (int i = 0; i < repetitions; ++i) {
    kernel.push_back(seconds(what.run));
    double fastest = std::numeric_limits<double>::infinity();
    for (const memory_loop::Loop each : memory_loop::loops()) fastest = std::min(fastest, seconds([&] { each(arrays); }));
    loop.push_back(fastest);
    ratios.push_back(loop.back() / kernel.back());
  }
  return {{"kernel", what.kernel},
          {"dtype", name(dtype)},
          {"size", size.name},
          {"bytes", bytes},
          {"bytes_a_second", bytes / median(kernel)},
          {"loop_bytes_a_second", bytes / median(loop)},
          {"ratio", median(ratios)}};
}

nlohmann::ordered_json measure_all(const speed::Options& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%-24s %-5s %-8s %8s %8s %8s %7s\n", "kernel", "dtype", "size", "MB", "GB/s", "loop", "ratio");
  const auto add = [&](const Case& what, const Size& size, DType dtype) {
    const nlohmann::ordered_json row = measure(what, size, dtype, options.repetitions);
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    std::printf("%-24s %-5s %-8s %8.1f %8.1f %8.1f %6.0f%%\n", what.kernel, name(dtype), size.name, number("bytes") * 1e-6,
                number("bytes_a_second") * 1e-9, number("loop_bytes_a_second") * 1e-9, 100 * number("ratio"));
    std::fflush(stdout);
    rows.push_back(row);
  };
  for (const Size& size : sizes) {
    for (const std::string& text : options.dtypes) {
      const DType dtype = dtype_from_name(text.c_str());
      add(adamw(size, dtype), size, dtype);
      for (const auto& cases : {layer_norm, rms_norm, rotary, gelu, silu_gate, embedding}) {
        for (const Case& what : cases(size, dtype)) add(what, size, dtype);
      }
    }
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares the kernels of training that move memory with plain loops");
  speed::Options options{.dtypes = {"f32", "bf16"}, .repetitions = 15, .json = ""};
  return speed::run(
      app, options, argc, argv, [&] { return measure_all(options); }, [] { return true; });
}
