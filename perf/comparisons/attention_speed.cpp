// The rate of attention in one thread, as a share of the rate of a matrix product of the same type. Attention's operations
// are those of the pairs of queries and keys that its mask shows: 4 a pair and element of the head in forward, 10 in
// backward. Both sides in turn; medians.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "common/output_file.hpp"
#include "stretto/kernels.hpp"

namespace {

using namespace stretto;

struct Options {
  std::vector<std::string> shapes = {"8x128x4x32", "4x256x4x64", "2x512x4x64", "1x1024x4x64", "1x256x2x128"};
  std::vector<std::string> dtypes = {"f32"};
  int repetitions = 51;
  std::string json;
};

// Of the processor, so that other programs on the machine count less.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class Run>
double seconds(Run run, int calls) {
  const double start = thread_seconds();
  for (int i = 0; i < calls; ++i) run();
  return (thread_seconds() - start) / calls;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Tensor random_tensor(Shape shape, DType dtype) {
  Tensor result(std::move(shape), dtype);
  std::vector<float> numbers(static_cast<std::size_t>(result.size()));
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  for (float& number : numbers) number = normal(generator);
  kernels::convert(DType::f32, numbers.data(), dtype, result.raw(), result.size());
  return result;
}

kernels::AttentionShape shape_of(const std::string& text) {
  kernels::AttentionShape shape{};
  if (std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld", &shape.batch, &shape.sequence, &shape.heads, &shape.head_size) != 4)
    throw std::runtime_error("'" + text + "' is no shape; give BATCHxSEQUENCExHEADSxHEAD_SIZE, such as 4x256x4x64.");
  return shape;
}

nlohmann::ordered_json compare(const kernels::AttentionShape& shape, DType dtype, int repetitions, const std::string& name) {
  constexpr std::int64_t n = 768;
  const Tensor a = random_tensor({n, n}, dtype);
  const Tensor b = random_tensor({n, n}, dtype);
  const Tensor c({n, n}, dtype);
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t hidden = shape.heads * shape.head_size;
  const Tensor qkv = random_tensor({tokens, 3 * hidden}, dtype);
  const Tensor dout = random_tensor({tokens, hidden}, dtype);
  const Tensor out({tokens, hidden}, dtype);
  const Tensor log_sum_exp({shape.batch, shape.heads, shape.sequence}, kernels::accumulator(dtype));
  const Tensor dqkv({tokens, 3 * hidden}, dtype);
  const auto product = [&] { kernels::gemm(a, kernels::Transpose::no, b, kernels::Transpose::no, c); };
  const auto forward = [&] { kernels::attention_forward(shape, qkv, out, log_sum_exp); };
  const auto backward = [&] { kernels::attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv); };
  const double pairs = 0.5 * static_cast<double>(shape.sequence * (shape.sequence + 1) * shape.batch * hidden);
  const int calls = std::max(1, static_cast<int>(2e8 / (4 * pairs)));
  product(), forward(), backward();
  std::vector<double> product_rates;
  std::vector<double> forward_rates;
  std::vector<double> backward_rates;
  for (int i = 0; i < repetitions; ++i) {
    product_rates.push_back(2.0 * n * n * n / seconds(product, 1));
    forward_rates.push_back(4 * pairs / seconds(forward, calls));
    backward_rates.push_back(10 * pairs / seconds(backward, std::max(1, calls / 2)));
  }
  const double product_rate = median(product_rates);
  const double forward_rate = median(forward_rates);
  const double backward_rate = median(backward_rates);
  std::printf("%-5s %-14s product %6.1f Gflop/s   forward %6.1f (%2.0f%%)   backward %6.1f (%2.0f%%)\n",
              stretto::name(dtype), name.c_str(), product_rate / 1e9, forward_rate / 1e9, 100 * forward_rate / product_rate,
              backward_rate / 1e9, 100 * backward_rate / product_rate);
  std::fflush(stdout);
  return {{"shape", name},
          {"dtype", stretto::name(dtype)},
          {"product_flops", product_rate},
          {"forward_flops", forward_rate},
          {"backward_flops", backward_rate}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Compares attention with matrix products");
  app.add_option("--shapes", options.shapes, "BATCHxSEQUENCExHEADSxHEAD_SIZE")->delimiter(',');
  app.add_option("--dtypes", options.dtypes, "f64, f32, bf16, f16")->delimiter(',');
  app.add_option("--repetitions", options.repetitions, "Repetitions of each side, in turn")->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "A file for the results");
  CLI11_PARSE(app, argc, argv);
  if (!options.json.empty()) perf::check_writable("--json", options.json);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& dtype : options.dtypes) {
    for (const std::string& shape : options.shapes)
      rows.push_back(compare(shape_of(shape), dtype_from_name(dtype.c_str()), options.repetitions, shape));
  }
  if (!options.json.empty()) perf::write_file("--json", options.json, nlohmann::ordered_json{{"rows", rows}}.dump(1) + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
