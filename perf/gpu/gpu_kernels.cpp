// Measures the speed of the kernels on a GPU: those that move bytes compared with a copy in the same run, those that
// multiply compared with the best rate of matrix products in the same run. Bytes are the least that a kernel must move: each
// input read once, each output written once. Times are the GPU's own (CUDA events). Several sets of buffers take turns, so
// that no call finds the data of the call before in the cache. The kernels of collectives have no public interface on a GPU,
// so this program uses the library's own.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/common/exit_status.hpp"
#include "common/output_file.hpp"
#include "device/gpu.hpp"
#include "gpu_data.hpp"
#include "gpu_timing.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/rotary.hpp"

namespace {

using namespace stretto;
namespace k = stretto::kernels;
using k::Transpose;
using perf::device_seconds;
using perf::random;

constexpr double set_bytes = 1 << 30;  // least size of all sets of a case together: many times any cache
constexpr int most_sets = 8;

struct Case {
  std::string kernel, what;
  double bytes = 0;  // read and written by a call; 0: the call is not bound by bytes
  double flops = 0;
  // Makes a call on buffers of its own.
  std::function<std::function<void()>()> make;
};

Tensor tokens(std::int64_t count, std::int64_t vocabulary) {
  std::mt19937 generator(2);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(count));
  for (std::int32_t& number : numbers) {
    number = static_cast<std::int32_t>(generator() % static_cast<std::uint64_t>(vocabulary));
  }
  return Tensor::of(numbers);
}

double element_bytes(DType dtype) { return static_cast<double>(size_of(dtype)); }
std::string times(std::int64_t rows, std::int64_t columns) { return std::to_string(rows) + " x " + std::to_string(columns); }

// ---- what collectives call

constexpr std::int64_t elements = 128 << 20;

Case reduce(DType dtype, int sources) {
  return {"reduce", std::to_string(sources) + " sources, " + name(dtype), (sources + 1) * elements * element_bytes(dtype), 0,
          [=] {
            std::vector<Tensor> from;
            for (int i = 0; i < sources; ++i) from.push_back(random({elements}, dtype));
            const Tensor out({elements}, dtype);
            return [=] {
              std::vector<const void*> pointers;
              for (const Tensor& each : from) pointers.push_back(each.raw());
              gpu().kernels().reduce_all(ReduceOp::sum, dtype, pointers.data(), sources, out.raw(), elements, 1,
                                         gpu_stream());
            };
          }};
}

Case convert(DType from, DType to) {
  return {"convert", std::string(name(from)) + " to " + name(to), elements * (element_bytes(from) + element_bytes(to)), 0,
          [=] {
            const Tensor x = random({elements}, from);
            const Tensor y({elements}, to);
            return [=] { k::convert(x, y); };
          }};
}

Tensor records_of(QuantizedFormat format, DType dtype) {
  const Tensor x = random({elements}, dtype);
  const Tensor records({packed_bytes(format, elements)}, DType::u8);
  gpu().kernels().quantize(format, dtype, x.raw(), records.raw(), elements, {}, gpu_stream());
  return records;
}

std::vector<Case> quantization(QuantizedFormat format, DType dtype) {
  const double of_records = static_cast<double>(packed_bytes(format, elements));
  const double of_elements = elements * element_bytes(dtype);
  const std::string what = std::string(name(format)) + ", " + name(dtype);
  return {{"quantize", what, of_elements + of_records, 0,
           [=] {
             const Tensor x = random({elements}, dtype);
             const Tensor records({packed_bytes(format, elements)}, DType::u8);
             return [=] { gpu().kernels().quantize(format, dtype, x.raw(), records.raw(), elements, {}, gpu_stream()); };
           }},
          {"dequantize", what, of_elements + of_records, 0,
           [=] {
             const Tensor records = records_of(format, dtype);
             const Tensor out({elements}, dtype);
             return [=] { gpu().kernels().dequantize(format, records.raw(), dtype, out.raw(), elements, gpu_stream()); };
           }},
          {"dequantize_reduce", what + ", 2 vectors", of_elements + 2 * of_records, 0,
           [=] {
             const Tensor one = records_of(format, dtype);
             const Tensor other = records_of(format, dtype);
             const Tensor out({elements}, dtype);
             return [=] {
               const void* const vectors[] = {one.raw(), other.raw()};
               gpu().kernels().dequantize_reduce(format, vectors, 2, dtype, out.raw(), elements, 1, gpu_stream());
             };
           }},
          {"requantize", what + ", 2 vectors", 3 * of_records, 0, [=] {
             const Tensor one = records_of(format, dtype);
             const Tensor other = records_of(format, dtype);
             const Tensor out({packed_bytes(format, elements)}, DType::u8);
             return [=] {
               const void* const vectors[] = {one.raw(), other.raw()};
               gpu().kernels().requantize(format, vectors, 2, format, out.raw(), elements, 1, {}, gpu_stream());
             };
           }}};
}

// ---- rows

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

// ---- products

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

Case copy() {
  constexpr std::int64_t bytes = 512 << 20;
  return {"copy", "512 MiB", 2.0 * bytes, 0, [] {
            const Tensor from = random({bytes / 4}, DType::f32);
            const Tensor to({bytes / 4}, DType::f32);
            return [=] { gpu().copy(to.raw(), from.raw(), bytes, gpu_stream()); };
          }};
}

std::vector<Case> every_case() {
  constexpr std::int64_t rows = 32 * 1024;  // GPT-2 124M, 32 sequences of 1024 tokens
  constexpr std::int64_t vocabulary = 50304;
  std::vector<Case> all;
  const auto add = [&](const std::vector<Case>& some) { all.insert(all.end(), some.begin(), some.end()); };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int sources : {2, 8}) all.push_back(reduce(dtype, sources));
  }
  add({convert(DType::f32, DType::bf16), convert(DType::bf16, DType::f32)});
  for (const QuantizedFormat format :
       {QuantizedFormat::int8, QuantizedFormat::int4, QuantizedFormat::fp8, QuantizedFormat::onebit}) {
    for (const DType dtype : {DType::bf16, DType::f32}) add(quantization(format, dtype));
  }
  add(layer_norm(4 * rows, 768, DType::bf16));
  add(layer_norm(rows, 4096, DType::bf16));
  add(layer_norm(4 * rows, 768, DType::f32));
  add(rms_norm(rows, 1, 4096, DType::bf16));
  add(rms_norm(rows, 32, 128, DType::bf16));
  add({rotary(rows, 32, 128, DType::bf16)});
  add(silu_gate(rows, 14336, DType::bf16));
  add(cross_entropy(rows / 2, vocabulary, DType::bf16));
  add(gelu(rows, 3072, DType::bf16));
  add({adamw(124 << 20, DType::bf16), adamw(124 << 20, DType::f32)});
  all.push_back(gemm("square", 8192, 8192, 8192, Transpose::no, Transpose::yes, DType::bf16));
  add(layer_products(rows, 768, 3 * 768));
  add(layer_products(rows, 768, 768));
  add(layer_products(rows, 768, 4 * 768));
  add(layer_products(rows, 4 * 768, 768));
  add(layer_products(rows, 768, vocabulary));
  add(linear(rows, 768, 3 * 768));
  add(linear(rows, 768, 4 * 768));
  add(attention({32, 1024, 12, 64}, DType::bf16));
  return all;
}

double seconds_of(const Case& what) {
  const int sets = what.bytes > 0 ? static_cast<int>(std::clamp(set_bytes / what.bytes + 1, 1.0, 1.0 * most_sets)) : 2;
  std::vector<std::function<void()>> calls;
  for (int set = 0; set < sets; ++set) calls.push_back(what.make());
  return device_seconds([&](int call) { calls[static_cast<std::size_t>(call) % calls.size()](); });
}

struct Options {
  std::vector<std::string> kernels;
  std::string json;
};

double copied_a_second() {
  const Case baseline = copy();
  return baseline.bytes / seconds_of(baseline);
}

nlohmann::ordered_json measured(const Case& each, double copied) {
  nlohmann::ordered_json row{{"kernel", each.kernel}, {"what", each.what}};
  const double seconds = seconds_of(each);
  row["us"] = seconds * 1e6;
  if (each.bytes > 0) {
    row["bytes"] = each.bytes;
    row["ratio_to_copy"] = each.bytes / seconds / copied;
    std::printf("%-24s %-52s %10.1f us %8.0f GB/s %5.0f%%\n", each.kernel.c_str(), each.what.c_str(), seconds * 1e6,
                each.bytes / seconds * 1e-9, each.bytes / seconds / copied * 100);
  } else {
    row["flops"] = each.flops;
    std::printf("%-24s %-52s %10.1f us %8.1f TFLOP/s\n", each.kernel.c_str(), each.what.c_str(), seconds * 1e6,
                each.flops / seconds * 1e-12);
  }
  std::fflush(stdout);
  return row;
}

// Whether all cases could be measured. The results are written after each case, since the time on a GPU may end before the
// last.
bool run(const Options& options) {
  const OnDevice device(Device::cuda);
  const auto is_asked = [&](const Case& each) {
    return options.kernels.empty() ||
           std::find(options.kernels.begin(), options.kernels.end(), each.kernel) != options.kernels.end();
  };
  const double warm_until = now_seconds() + 0.3;  // the GPU raises its clocks under load
  double copied = 0;
  while (now_seconds() < warm_until) copied = std::max(copied, copied_a_second());
  std::printf("# %s; a copy moves %.0f GB/s of bytes read and written\n", gpu_info()->name.c_str(), copied * 1e-9);
  nlohmann::ordered_json all{{"gpu", gpu_info()->name},
                             {"copy_bytes_a_second", copied},
                             {"matrix_flops_a_second", 0.0},
                             {"rows", nlohmann::ordered_json::array()}};
  bool complete = true;
  double best = 0;
  for (const Case& each : every_case()) {
    if (!is_asked(each)) continue;
    try {
      all["rows"].push_back(measured(each, copied));
      if (each.kernel == "gemm") best = std::max(best, each.flops / all["rows"].back()["us"].get<double>() * 1e6);
    } catch (const std::exception& error) {
      std::printf("%-24s %-52s failed: %s\n", each.kernel.c_str(), each.what.c_str(), error.what());
      all["rows"].push_back({{"kernel", each.kernel}, {"what", each.what}, {"error", error.what()}});
      complete = false;
    }
    all["matrix_flops_a_second"] = best;
    if (!options.json.empty()) perf::write_file("--json", options.json, all.dump(1) + "\n");
  }
  all["copy_bytes_a_second_last"] = copied_a_second();
  if (!options.json.empty()) perf::write_file("--json", options.json, all.dump(1) + "\n");
  return complete;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures the kernels on a GPU");
  app.add_option("--kernels", options.kernels, "Only these, such as reduce,gemm")->delimiter(',');
  app.add_option("--json", options.json, "A file for the results");
  CLI11_PARSE(app, argc, argv);
  const auto body = [&] {
    if (!options.json.empty()) perf::check_writable("--json", options.json);
    return run(options) ? 0 : 3;
  };
  return apps::exit_status(body, 2);
}
