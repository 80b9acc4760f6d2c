#include "apps/train/measure/computation.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/train/measure/matrix_rate.hpp"
#include "apps/train/measure/some_numbers.hpp"
#include "stretto/kernels.hpp"
#include "stretto/models/decoder_cost.hpp"
#include "stretto/planning/attention_cost.hpp"

namespace apps {

using namespace stretto;

namespace {

constexpr std::int64_t most_sequences = 8;  // of a microbatch whose products are measured

class ComputationMeasurement {
 public:
  ComputationMeasurement(const Timing& timing, const DecoderShape& model, DType dtype, TrainingCluster& cluster)
      : timing_(timing), model_(model.filled()), dtype_(dtype), cluster_(cluster) {}

  void measure() {
    measure_other_kernels();
    measure_products();
    measure_attention();
  }

 private:
  const Communicator& world() const { return timing_.world(); }

  // The kernels of a block beside products, and the tensors of which they count as read or written (LayoutCosts).
  void measure_other_kernels() {
    const std::int64_t rows = std::min<std::int64_t>(model_.sequence * 4, std::int64_t{1} << 14);
    const Tensor x = some_numbers(rows, model_.hidden, dtype_), y({rows, model_.hidden}, dtype_), dx(y.shape(), dtype_);
    const std::int64_t mlp_width = model_.mlp_width;
    const std::int64_t before = kernels::products_of(model_.activation) * mlp_width;
    const Tensor wide = some_numbers(rows, before, dtype_), dwide(wide.shape(), dtype_), after({rows, mlp_width}, dtype_);
    const DType accumulator = kernels::accumulator(dtype_);
    const Tensor gamma = some_numbers(1, model_.hidden, dtype_).view(0, {model_.hidden});
    const Tensor mean({rows}, accumulator), rstd({rows}, accumulator);
    const Tensor dgamma({model_.hidden}, accumulator), dbeta({model_.hidden}, accumulator);
    const Tensor sums({before}, accumulator);
    for (const Tensor& each : {dx, dgamma, dbeta, sums}) each.zero();
    const double seconds = timing_.alone(timing_.slowest([&] {
      for (int norm = 0; norm < 2; ++norm) {
        kernels::layer_norm_forward(x, gamma, gamma, 1e-5, y, mean, rstd);
        kernels::layer_norm_backward(x, gamma, mean, rstd, y, dx, dgamma, dbeta);
      }
      kernels::activation_forward(model_.activation, wide, after);
      kernels::activation_backward(model_.activation, wide, after, dwide);
      kernels::add_column_sums(wide, sums);
    }));
    const std::int64_t columns = 2 * (2 + 4) * model_.hidden + 4 * before + 2 * mlp_width;
    const auto bytes = static_cast<double>(rows * columns * static_cast<std::int64_t>(size_of(dtype_)));
    cluster_.memory_bytes_per_second = bytes / seconds;
    const Tensor few = some_numbers(1, 8, dtype_);
    constexpr int calls = 50;
    cluster_.launch_seconds = timing_.alone(timing_.slowest([&] {
      for (int call = 0; call < calls; ++call) kernels::add(few, few, few);
    })) / calls;
  }

  static double size_of_product(const Product& product) { return std::cbrt(product.operations() / 2); }

  static void add_product(std::vector<Product>& products, const Product& product) {
    const auto is_near = [&](const Product& other) {
      return std::abs(std::log(size_of_product(other) / size_of_product(product))) < 0.03;
    };
    if (std::ranges::none_of(products, is_near)) products.push_back(product);
  }

  // The three products of a linear layer: forward, and backward for its input and its weight.
  std::function<void()> linear(const Product& product) const {
    const std::int64_t tokens = product.m, in = product.k, out = product.n;
    const Tensor x = some_numbers(tokens, in, dtype_), weight = some_numbers(out, in, dtype_), y({tokens, out}, dtype_);
    const Tensor dx({tokens, in}, dtype_), gradient({out, in}, kernels::accumulator(dtype_));
    gradient.zero();
    return [=] {
      using kernels::Transpose;
      kernels::gemm(x, Transpose::no, weight, Transpose::yes, y);
      kernels::gemm(y, Transpose::no, weight, Transpose::no, dx);
      kernels::gemm(y, Transpose::yes, x, Transpose::no, gradient, true);
    };
  }

  double rate_of(const Product& product, double seconds) const {
    const auto m = static_cast<double>(product.m), n = static_cast<double>(product.n), k = static_cast<double>(product.k);
    // product_seconds() adds these seconds to those of the operations, so the rate must not contain them.
    const auto extra = [&](double results) {
      return std::max(0.0, results - size_of_product(product) * size_of_product(product)) *
                 static_cast<double>(size_of(dtype_)) / cluster_.memory_bytes_per_second +
             cluster_.launch_seconds;
    };
    const double computing = std::max(seconds / 2, seconds - extra(m * n) - extra(m * k) - extra(n * k));
    return 3 * product.operations() / computing;
  }

  // Heads of keys and values over tensor-parallel ranks, or ranks over heads.
  bool divides(int ranks) const {
    return model_.heads % ranks == 0 && (model_.kv_heads % ranks == 0 || ranks % model_.kv_heads == 0);
  }

  void measure_products() {
    std::vector<Product> products;
    for (std::int64_t sequences = 1; sequences <= most_sequences; sequences *= 2) {
      const std::int64_t tokens = sequences * model_.sequence;
      for (int ranks = 1; ranks <= world().size() && divides(ranks); ranks *= 2) {
        const DecoderCost cost = decoder_cost(model_, {.planned_ranks = ranks}, {}, {.count = tokens});
        for (const LayerCost* layer : {&cost.block, &cost.head}) {
          for (const Product& product : layer->forward.products) add_product(products, product);
        }
      }
    }
    std::ranges::sort(products, {}, size_of_product);
    std::vector<Timing::Preparation> works;
    works.reserve(products.size());
    for (const Product& product : products) works.push_back([this, product] { return linear(product); });
    const std::vector<double> seconds = timing_.slowest_in_turn(works);
    std::vector<ProductRate>& rates = cluster_.products[dtype_];
    for (std::size_t i = 0; i < products.size(); ++i) {
      rates.push_back({size_of_product(products[i]), rate_of(products[i], timing_.alone(seconds[i]))});
    }
    double peak = matrix_rate(world(), dtype_) * timing_.turns();
    world().all_reduce(&peak, &peak, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"}).wait();
    cluster_.peak_flops = peak;
  }

  void measure_attention() {
    const kernels::AttentionShape shape{1, model_.sequence, model_.heads, model_.head_size};
    const std::int64_t width = model_.heads * model_.head_size;
    const Tensor qkv = some_numbers(model_.sequence, 3 * width, dtype_), dqkv(qkv.shape(), dtype_);
    const Tensor out({model_.sequence, width}, dtype_);
    const Tensor log_sum_exp({1, model_.heads, model_.sequence}, kernels::accumulator(dtype_));
    const double seconds = timing_.alone(timing_.slowest([&] {
      kernels::attention_forward(shape, qkv, out, log_sum_exp);
      kernels::attention_backward(shape, qkv, out, log_sum_exp, out, dqkv);
    }));
    const double pairs = 0.5 * static_cast<double>(model_.sequence * (model_.sequence + 1));
    cluster_.attention_flops =
        (attention_forward_flops + attention_backward_flops) * pairs * static_cast<double>(width) / seconds;
  }

  const Timing& timing_;
  DecoderShape model_;
  DType dtype_;
  TrainingCluster& cluster_;
};

}  // namespace

void measure_computation(const Timing& timing, const DecoderShape& model, DType dtype, TrainingCluster& cluster) {
  ComputationMeasurement(timing, model, dtype, cluster).measure();
}

}  // namespace apps
