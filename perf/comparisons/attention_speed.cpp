// The rate of attention in one thread, as a share of the rate of a matrix product of the same type. Attention's operations
// are those of the pairs of queries and keys that its mask shows: 4 a pair and element of the head in forward, 10 in
// backward. Both sides in turn; medians.
#include "../gpu/gpu_data.hpp"
#include "speed.hpp"

namespace {

using namespace stretto;

using speed::median;

template <class Run>
double seconds(Run run, int calls) {
  const double start = speed::thread_seconds();
  for (int i = 0; i < calls; ++i) run();
  return (speed::thread_seconds() - start) / calls;
}

kernels::AttentionShape shape_of(const std::string& text) {
  kernels::AttentionShape shape{};
  if (std::sscanf(text.c_str(), "%ldx%ldx%ldx%ld", &shape.batch, &shape.sequence, &shape.heads, &shape.head_size) != 4)
    throw std::runtime_error("'" + text + "' is no shape; give BATCHxSEQUENCExHEADSxHEAD_SIZE, such as 4x256x4x64.");
  return shape;
}

nlohmann::ordered_json compare(const kernels::AttentionShape& shape, DType dtype, int repetitions, const std::string& name) {
  constexpr std::int64_t n = 768;
  const Tensor a = perf::random({n, n}, dtype);
  const Tensor b = perf::random({n, n}, dtype);
  const Tensor c({n, n}, dtype);
  const std::int64_t tokens = shape.batch * shape.sequence;
  const std::int64_t hidden = shape.heads * shape.head_size;
  const Tensor qkv = perf::random({tokens, 3 * hidden}, dtype);
  const Tensor dout = perf::random({tokens, hidden}, dtype);
  const Tensor out({tokens, hidden}, dtype);
  const Tensor log_sum_exp({shape.batch, shape.heads, shape.sequence}, kernels::accumulator(dtype));
  const Tensor dqkv({tokens, 3 * hidden}, dtype);
  const auto product = [&] { kernels::gemm(a, kernels::Transpose::no, b, kernels::Transpose::no, c); };
  const auto forward = [&] { kernels::attention_forward(shape, qkv, out, log_sum_exp); };
  const auto backward = [&] { kernels::attention_backward(shape, qkv, out, log_sum_exp, dout, dqkv); };
  const double pairs = 0.5 * static_cast<double>(shape.sequence * (shape.sequence + 1) * shape.batch * hidden);
  const int calls = std::max(1, static_cast<int>(2e8 / (4 * pairs)));
  product(), forward(), backward();
  std::vector<double> product_rates, forward_rates, backward_rates;
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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Compares attention with matrix products");
  speed::Options options{.dtypes = {"f32"}, .repetitions = 51, .json = ""};
  std::vector<std::string> shapes = {"8x128x4x32", "4x256x4x64", "2x512x4x64", "1x1024x4x64", "1x256x2x128"};
  app.add_option("--shapes", shapes, "BATCHxSEQUENCExHEADSxHEAD_SIZE")->delimiter(',');
  const auto measure = [&] {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::string& dtype : options.dtypes) {
      for (const std::string& shape : shapes)
        rows.push_back(compare(shape_of(shape), dtype_from_name(dtype.c_str()), options.repetitions, shape));
    }
    return rows;
  };
  return speed::run(app, options, argc, argv, measure, [] { return true; });
}
