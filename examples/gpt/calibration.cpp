#include "calibration.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "matrix_rate.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/attention_cost.hpp"
#include "stretto/layers/parameter.hpp"

namespace gpt {

using namespace stretto;

namespace {

constexpr std::int64_t most_sequences = 8;  // of a microbatch whose products are measured
constexpr int rounds = 9;
constexpr double least_round = 0.02;  // seconds; a rank that shares a core begins milliseconds after another

Tensor some_numbers(std::int64_t rows, std::int64_t columns, DType dtype) {
  const Tensor host({rows, columns}, dtype, Device::cpu);
  for (std::int64_t i = 0; i < host.size(); ++i) {
    host.set(i, 0.1 * random_normal(1, "calibration", static_cast<std::uint64_t>(i % 4099)));
  }
  return host.on(current_device());
}

// The cores that the ranks of a group may run on, together.
int cores_of(const Communicator& group) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<float> mine(CPU_SETSIZE);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t core = 0; core < mine.size(); ++core) mine[core] = CPU_ISSET(core, &set) ? 1 : 0;
  }
  group.all_reduce(mine.data(), mine.data(), CPU_SETSIZE, DType::f32, ReduceOp::max, Stream::inline_(),
                   {.tag = "calibration"});
  return std::max(1, static_cast<int>(std::ranges::count(mine, 1.0F)));
}

class Measurement {
 public:
  Measurement(const Communicator& world, const ModelShape& model, DType dtype)
      : world_(world), model_(model), dtype_(dtype), node_(world.node()) {}

  Calibration measure() {
    find_turns();
    measure_other_kernels();
    measure_products();
    measure_attention();
    measure_links();
    find_memory();
    return result_;
  }

 private:
  // On the host, ranks of a node share its cores; a communication thread of each is at work besides.
  void find_turns() {
    if (current_device() == Device::cuda) return;
    double cores = cores_of(node_);
    world_.all_reduce(&cores, &cores, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"});
    const double ranks = node_.size();
    turns_ = std::max(1.0, ranks / cores);
    if (turns_ > 1) result_.cluster.ranks_at_a_time = static_cast<int>(cores);
    if (cores < 2 * ranks) {
      result_.system.overlaps_products = result_.system.overlaps_weights = result_.system.overlaps_sums = false;
    }
  }

  // Seconds of the device's work, of the slowest rank: all do it at the same time. If ranks take turns on cores, they begin
  // one after the other: the time of a node is then from the first that begins to the last that ends.
  template <class Work>
  double slowest(const Work& work) const {
    const auto now = [] {
      const stretto::Work mark = computation().enqueue([] {});
      mark.wait();
      return mark.times().done;
    };
    std::vector<double> seconds;
    int calls = 1;
    for (int round = 0; round <= rounds; ++round) {
      world_.barrier(Stream::inline_());
      double span[] = {0, -now()};
      for (int call = 0; call < calls; ++call) work();
      span[0] = now();
      if (turns_ > 1) {
        node_.all_reduce(span, span, 2, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"});
      }
      double of_call = (span[0] + span[1]) / calls;
      if (round > 0) seconds.push_back(of_call);
      if (round > 0) continue;  // the first one warms up, and tells how long the others take
      world_.all_reduce(&of_call, &of_call, 1, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"});
      calls = std::clamp(static_cast<int>(least_round / of_call), 1, 100);
    }
    std::ranges::sort(seconds);
    double median = seconds[seconds.size() / 2];
    world_.all_reduce(&median, &median, 1, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"});
    return median;
  }

  // The seconds that the same work takes a rank with a core of its own.
  double alone(double seconds) const { return seconds / turns_; }

  // The kernels of a block beside products, and the tensors of which they count as read or written (LayoutCosts).
  void measure_other_kernels() {
    const std::int64_t rows = std::min<std::int64_t>(model_.sequence * 4, std::int64_t{1} << 14);
    const Tensor x = some_numbers(rows, model_.hidden, dtype_), y({rows, model_.hidden}, dtype_), dx(y.shape(), dtype_);
    const Tensor wide = some_numbers(rows, 4 * model_.hidden, dtype_), after(wide.shape(), dtype_);
    const DType accumulator = kernels::accumulator(dtype_);
    const Tensor gamma = some_numbers(1, model_.hidden, dtype_).view(0, {model_.hidden});
    const Tensor mean({rows}, accumulator), rstd({rows}, accumulator);
    const Tensor dgamma({model_.hidden}, accumulator), dbeta({model_.hidden}, accumulator);
    const Tensor sums({4 * model_.hidden}, accumulator);
    for (const Tensor& each : {dx, dgamma, dbeta, sums}) each.zero();
    const double seconds = alone(slowest([&] {
      for (int norm = 0; norm < 2; ++norm) {
        kernels::layer_norm_forward(x, gamma, gamma, 1e-5, y, mean, rstd);
        kernels::layer_norm_backward(x, gamma, mean, rstd, y, dx, dgamma, dbeta);
      }
      kernels::gelu_forward(wide, after);
      kernels::gelu_backward(wide, after, after);
      kernels::add_column_sums(wide, sums);
    }));
    const double tensors = 2 * (2 + 4) + 4 * (2 + 3 + 1);  // of the residual's width
    const double bytes = tensors * static_cast<double>(rows * model_.hidden * static_cast<std::int64_t>(size_of(dtype_)));
    result_.cluster.memory_bytes_per_second = bytes / seconds;
    const Tensor few = some_numbers(1, 8, dtype_);
    constexpr int calls = 50;
    result_.cluster.launch_seconds = alone(slowest([&] {
                                       for (int call = 0; call < calls; ++call) kernels::add(few, few, few);
                                     })) /
                                     calls;
  }

  void measure_product(std::int64_t tokens, std::int64_t in, std::int64_t out) {
    const auto m = static_cast<double>(tokens), n = static_cast<double>(out), k = static_cast<double>(in);
    const double size = std::cbrt(m * n * k);
    for (const ProductRate& known : rates_) {
      if (std::abs(std::log(known.size / size)) < 0.03) return;
    }
    const Tensor x = some_numbers(tokens, in, dtype_), weight = some_numbers(out, in, dtype_), y({tokens, out}, dtype_);
    const Tensor dx({tokens, in}, dtype_), gradient({out, in}, kernels::accumulator(dtype_));
    gradient.zero();
    using kernels::Transpose;
    const double seconds = alone(slowest([&] {
      kernels::gemm(x, Transpose::no, weight, Transpose::yes, y);
      kernels::gemm(y, Transpose::no, weight, Transpose::no, dx);
      kernels::gemm(y, Transpose::yes, x, Transpose::no, gradient, true);
    }));
    // What product_seconds() adds to the operations is not part of their rate.
    const auto extra = [&](double results) {
      return std::max(0.0, results - size * size) * static_cast<double>(size_of(dtype_)) /
                 result_.cluster.memory_bytes_per_second +
             result_.cluster.launch_seconds;
    };
    const double computing = std::max(seconds / 2, seconds - extra(m * n) - extra(m * k) - extra(n * k));
    rates_.push_back({size, 3 * 2 * m * n * k / computing});
  }

  void measure_products() {
    for (std::int64_t sequences = 1; sequences <= most_sequences; sequences *= 2) {
      const std::int64_t tokens = sequences * model_.sequence;
      for (int ranks = 1; ranks <= world_.size() && model_.heads % ranks == 0; ranks *= 2) {
        measure_product(tokens, model_.hidden, 3 * model_.hidden / ranks);
        measure_product(tokens, model_.hidden / ranks, model_.hidden);
        measure_product(tokens, model_.hidden, 4 * model_.hidden / ranks);
        measure_product(tokens, model_.hidden, (model_.vocabulary + ranks - 1) / ranks);
      }
    }
    std::ranges::sort(rates_, {}, &ProductRate::size);
    result_.cluster.products[dtype_] = rates_;
    result_.cluster.peak_flops = matrix_rate(world_, dtype_) * turns_;
    double peak = result_.cluster.peak_flops;
    world_.all_reduce(&peak, &peak, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"});
    result_.cluster.peak_flops = peak;
  }

  void measure_attention() {
    const std::int64_t head = model_.hidden / model_.heads;
    const kernels::AttentionShape shape{1, model_.sequence, model_.heads, head};
    const Tensor qkv = some_numbers(model_.sequence, 3 * model_.hidden, dtype_), dqkv(qkv.shape(), dtype_);
    const Tensor out({model_.sequence, model_.hidden}, dtype_);
    const Tensor log_sum_exp({1, model_.heads, model_.sequence}, kernels::accumulator(dtype_));
    const double seconds = alone(slowest([&] {
      kernels::attention_forward(shape, qkv, out, log_sum_exp);
      kernels::attention_backward(shape, qkv, out, log_sum_exp, out, dqkv);
    }));
    const double pairs = 0.5 * static_cast<double>(model_.sequence * (model_.sequence + 1));
    result_.cluster.attention_flops =
        (attention_forward_flops + attention_backward_flops) * pairs * static_cast<double>(model_.hidden) / seconds;
  }

  // Latency and bandwidth of a link, as if all-reduces were by the formula 2 (p - 1) / p of the bytes.
  LinkLevel link_of(const Communicator& group, const char* name) {
    LinkLevel level;
    level.name = name;
    level.bandwidth_gbs = 1e3;
    if (group.size() == 1) return level;
    const auto all_reduce = [&](std::int64_t elements) {
      const Tensor values = Tensor::symmetric({elements}, DType::f32);
      values.zero();
      return slowest([&] { group.all_reduce(values, ReduceOp::sum, computation(), {.tag = "calibration"}); });
    };
    const double small = all_reduce(2);
    constexpr std::int64_t elements = 1 << 20;
    const double large = std::max(all_reduce(elements) - small, 1e-9);
    const double ranks = group.size();
    level.alpha_us = small * 1e6 / (2 * std::ceil(std::log2(ranks)));
    level.bandwidth_gbs = 2 * (ranks - 1) / ranks * static_cast<double>(elements * 4) / large * 1e-9;
    return level;
  }

  void measure_links() {
    LinkModel& links = result_.cluster.links;
    const bool several = node_.size() < world_.size();
    LinkLevel inside = link_of(node_, "node");
    links.local_gbs = 1e6;  // the work of a sum is part of what was measured
    links.levels = {inside};
    if (!several) return;
    links.levels.front().ranks = node_.size();
    links.levels.front().ports = 1;
    const Communicator between = world_.split(node_.rank(), world_.rank(), "calibration");
    LinkLevel network = link_of(between, "network");
    network.bandwidth_gbs *= node_.size();  // all ranks of a node shared its port
    links.levels.push_back(network);
  }

  void find_memory() {
    double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE)) / node_.size();
    if (current_device() == Device::cuda) bytes = static_cast<double>(gpu_info().value().memory_bytes);
    world_.all_reduce(&bytes, &bytes, 1, DType::f64, ReduceOp::min, Stream::inline_(), {.tag = "calibration"});
    result_.cluster.memory_bytes = static_cast<std::int64_t>(bytes);
    result_.cluster.narrow_sums = current_device() == Device::cuda;
  }

  const Communicator& world_;
  const ModelShape& model_;
  DType dtype_;
  Communicator node_;
  double turns_ = 1;  // that ranks of a node take on its cores
  std::vector<ProductRate> rates_;
  Calibration result_;
};

}  // namespace

Calibration calibrate(const Communicator& world, const ModelShape& model, DType dtype) {
  return Measurement(world, model, dtype).measure();
}

}  // namespace gpt
