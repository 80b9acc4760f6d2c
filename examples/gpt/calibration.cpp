#include "calibration.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "matrix_rate.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/attention_cost.hpp"
#include "stretto/layers/parameter.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

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

// The ranks of this machine, which may be several hosts: containers and network namespaces have a kernel in common, and
// share its cores.
Communicator machine_of(const Communicator& world) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  std::vector<std::int64_t> ids(static_cast<std::size_t>(world.size()));
  const auto mine = static_cast<std::int64_t>(std::hash<std::string>()(id));
  world.all_gather(&mine, ids.data(), 1, DType::i64, Stream::inline_(), {.tag = "calibration"});
  return world.split(static_cast<int>(std::ranges::find(ids, mine) - ids.begin()), world.rank(), "machine");
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
      : world_(world), model_(model), dtype_(dtype), node_(world.node()), machine_(machine_of(world)) {}

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
  void find_turns() {
    if (current_device() == Device::cuda) return;
    int cores = cores_of(machine_);
    world_.all_reduce(&cores, &cores, 1, DType::i32, ReduceOp::min, Stream::inline_(), {.tag = "calibration"});
    if (machine_.size() <= cores) return;
    result_.cluster.shared_cores = {machine_.size(), cores};
    turns_ = result_.cluster.turns(world_.size());
  }

  // Allocates what a piece of work needs, and returns the work.
  using Preparation = std::function<std::function<void()>()>;

  // Seconds of the device's work, of the slowest rank: all do it at the same time. The pieces of work take turns, round by
  // round, because the machine's speed changes: what is compared has been measured at the same time.
  std::vector<double> slowest_in_turn(const std::vector<Preparation>& works) const {
    std::vector<std::vector<double>> seconds(works.size());
    std::vector<int> calls(works.size(), 1);
    for (int round = 0; round <= rounds; ++round) {
      for (std::size_t i = 0; i < works.size(); ++i) {
        const std::function<void()> work = works[i]();
        work();
        double of_call = seconds_of_call(work, calls[i]);
        if (round > 0) {
          seconds[i].push_back(of_call);
        } else {  // the first one tells how long the others take
          world_.all_reduce(&of_call, &of_call, 1, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"});
          calls[i] = std::clamp(static_cast<int>(least_round / of_call), 1, 100);
        }
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& each : seconds) {
      std::ranges::sort(each);
      medians.push_back(each[each.size() / 2]);
    }
    world_.all_reduce(medians.data(), medians.data(), static_cast<std::int64_t>(medians.size()), DType::f64, ReduceOp::max,
                      Stream::inline_(), {.tag = "calibration"});
    return medians;
  }

  double slowest(const std::function<void()>& work) const {
    return slowest_in_turn({[&] { return work; }}).front();
  }

  // Ranks that take turns on cores begin one after the other: the time of a machine is then from the first that begins to
  // the last that ends.
  double seconds_of_call(const std::function<void()>& work, int calls) const {
    const auto now = [] {
      const stretto::Work mark = computation().enqueue([] {});
      mark.wait();
      return mark.times().done;
    };
    world_.barrier(Stream::inline_());
    double span[] = {0, -now()};
    for (int call = 0; call < calls; ++call) work();
    span[0] = now();
    if (turns_ > 1) {
      machine_.all_reduce(span, span, 2, DType::f64, ReduceOp::max, Stream::inline_(), {.tag = "calibration"});
    }
    return (span[0] + span[1]) / calls;
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

  struct Product {
    std::int64_t tokens, in, out;
    double size() const {
      return std::cbrt(static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out));
    }
  };

  void add_product(std::vector<Product>& products, const Product& product) const {
    const auto is_near = [&](const Product& other) { return std::abs(std::log(other.size() / product.size())) < 0.03; };
    if (std::ranges::none_of(products, is_near)) products.push_back(product);
  }

  // The three products of a linear layer: forward, and backward for its input and its weight.
  std::function<void()> linear(const Product& product) const {
    const auto& [tokens, in, out] = product;
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
    const auto m = static_cast<double>(product.tokens), n = static_cast<double>(product.out),
               k = static_cast<double>(product.in);
    // What product_seconds() adds to the operations is not part of their rate.
    const auto extra = [&](double results) {
      return std::max(0.0, results - product.size() * product.size()) * static_cast<double>(size_of(dtype_)) /
                 result_.cluster.memory_bytes_per_second +
             result_.cluster.launch_seconds;
    };
    const double computing = std::max(seconds / 2, seconds - extra(m * n) - extra(m * k) - extra(n * k));
    return 3 * 2 * m * n * k / computing;
  }

  void measure_products() {
    std::vector<Product> products;
    for (std::int64_t sequences = 1; sequences <= most_sequences; sequences *= 2) {
      const std::int64_t tokens = sequences * model_.sequence;
      for (int ranks = 1; ranks <= world_.size() && model_.heads % ranks == 0; ranks *= 2) {
        add_product(products, {tokens, model_.hidden, 3 * model_.hidden / ranks});
        add_product(products, {tokens, model_.hidden / ranks, model_.hidden});
        add_product(products, {tokens, model_.hidden, 4 * model_.hidden / ranks});
        add_product(products, {tokens, model_.hidden, (model_.vocabulary + ranks - 1) / ranks});
      }
    }
    std::ranges::sort(products, {}, &Product::size);
    std::vector<Preparation> works;
    for (const Product& product : products) works.push_back([this, product] { return linear(product); });
    const std::vector<double> seconds = slowest_in_turn(works);
    std::vector<ProductRate>& rates = result_.cluster.products[dtype_];
    for (std::size_t i = 0; i < products.size(); ++i) {
      rates.push_back({products[i].size(), rate_of(products[i], alone(seconds[i]))});
    }
    double peak = matrix_rate(world_, dtype_) * turns_;
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

  // What an all-reduce of [rows, hidden] adds to a product of that result. Inside nodes of hosts it is the library's
  // reduce-scatter behind a product in chunks, and its all-gather before one, as tensor parallelism calls them: what is left
  // exposed, with the exchange's own work on the cores.
  double added_seconds(const Communicator& group, std::int64_t rows, bool in_chunks) const {
    if (in_chunks) return added_by_chunks(group, rows);
    const Tensor x = factor_.view(0, {rows, model_.hidden});
    const Tensor y = Tensor::symmetric({rows, model_.hidden}, dtype_);
    const auto multiply = [&] { kernels::gemm(x, kernels::Transpose::no, weight_, kernels::Transpose::yes, y); };
    const auto multiply_and_sum = [&] {
      multiply();
      group.all_reduce(y, ReduceOp::sum, computation(), {.tag = "calibration"});
    };
    const std::vector<double> seconds = slowest_in_turn({[&] { return multiply; }, [&] { return multiply_and_sum; }});
    return std::max(0.0, seconds[1] - seconds[0]);
  }

  double added_by_chunks(const Communicator& group, std::int64_t rows) const {
    using kernels::Transpose;
    std::vector<std::int64_t> rows_of_ranks;
    for (int rank = 0; rank < group.size(); ++rank) rows_of_ranks.push_back(chunk_of(rows, group.size(), rank, 1).count);
    const std::int64_t own_rows = rows_of_ranks[static_cast<std::size_t>(group.rank())];
    const Tensor x = factor_.view(0, {rows, model_.hidden});
    const Tensor own = Tensor::symmetric({own_rows, model_.hidden}, dtype_), gathered = Tensor::symmetric(x.shape(), dtype_);
    const Tensor y(x.shape(), dtype_);
    const Stream stream("calibration");
    const ChunkedGemmOptions options{.tag = "calibration"};
    const auto multiply = [&] {
      for (int product = 0; product < 2; ++product) kernels::gemm(x, Transpose::no, weight_, Transpose::yes, y);
    };
    const auto exchange = [&] {
      gemm_reduce_scatter(x, rows_of_ranks, weight_, Transpose::yes, own, group, stream, options);
      all_gather_gemm(own, rows_of_ranks, weight_, Transpose::yes, y, gathered, group, stream, options);
    };
    const std::vector<double> seconds = slowest_in_turn({[&] { return multiply; }, [&] { return exchange; }});
    return std::max(0.0, seconds[1] - seconds[0]);
  }

  // Latency and bandwidth of a link, as if all-reduces were by the formula 2 (p - 1) / p of the bytes.
  LinkLevel link_of(const Communicator& group, const char* name, bool in_chunks) const {
    LinkLevel level;
    level.name = name;
    level.bandwidth_gbs = 1e3;
    if (group.size() == 1) return level;
    const double small = added_seconds(group, group.size(), in_chunks);
    const double large = std::max(added_seconds(group, factor_.rows(), in_chunks) - small, 1e-9);
    const double ranks = group.size();
    level.alpha_us = small * 1e6 / (2 * std::ceil(std::log2(ranks)));
    level.bandwidth_gbs = 2 * (ranks - 1) / ranks * static_cast<double>(factor_.bytes()) / large * 1e-9;
    return level;
  }

  // The part of a few all-reduces that is hidden behind products that take as long. On the host they take cores, too, which
  // the products may need.
  double hidden_sums(const Communicator& group) const {
    if (group.size() == 1) return 1;
    const Tensor values = Tensor::symmetric({1 << 20}, DType::f32), result({factor_.rows(), model_.hidden}, dtype_);
    values.zero();
    const Stream stream("calibration");
    int products = 1;
    const auto sum = [&] {
      stretto::Work last;
      for (int i = 0; i < 4; ++i) last = group.all_reduce(values, ReduceOp::sum, stream, {.tag = "calibration"});
      return last;
    };
    const auto sum_alone = [&] { computation().wait(sum()); };
    const auto multiply = [&] {
      for (int i = 0; i < products; ++i) {
        kernels::gemm(factor_, kernels::Transpose::no, weight_, kernels::Transpose::yes, result);
      }
    };
    const auto both = [&] {
      const stretto::Work work = sum();
      multiply();
      computation().wait(work);
    };
    products = std::max(1, static_cast<int>(std::round(slowest(sum_alone) / slowest(multiply))));
    const std::vector<double> seconds =
        slowest_in_turn({[&] { return sum_alone; }, [&] { return multiply; }, [&] { return both; }});
    return std::clamp((seconds[0] + seconds[1] - seconds[2]) / std::min(seconds[0], seconds[1]), 0.0, 1.0);
  }

  void measure_links() {
    factor_ = some_numbers(4 * model_.sequence, model_.hidden, dtype_);
    weight_ = some_numbers(model_.hidden, model_.hidden, dtype_);
    const bool on_host = current_device() == Device::cpu, several = node_.size() < world_.size();
    LinkModel& links = result_.cluster.links;
    TrainingSystem& system = result_.system;
    links.local_gbs = 1e6;  // the work of a sum is part of what was measured
    links.levels = {link_of(node_, "node", on_host)};
    if (on_host) {  // links are what chunks leave exposed
      system.overlaps_products = system.overlaps_weights = false;
      // Whether sums go on beside products on shared cores is a matter of chance: it is not counted on.
      system.hidden_sums = turns_ > 1 ? 0 : hidden_sums(world_);
    }
    if (!several) return;
    links.levels.front().ranks = node_.size();
    links.levels.front().ports = 1;
    const Communicator between = world_.split(node_.rank(), world_.rank(), "calibration");
    LinkLevel network = link_of(between, "network", false);
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
  Communicator node_, machine_;
  double turns_ = 1;        // that ranks of a machine take on its cores
  Tensor factor_, weight_;  // of products beside exchanges
  Calibration result_;
};

}  // namespace

Calibration calibrate(const Communicator& world, const ModelShape& model, DType dtype) {
  return Measurement(world, model, dtype).measure();
}

}  // namespace gpt
