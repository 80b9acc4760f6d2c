#include "apps/train/measure/links.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "apps/train/measure/some_numbers.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/chunked_gemm.hpp"

namespace apps {

using namespace stretto;

namespace {

class LinkMeasurement {
 public:
  LinkMeasurement(const Timing& timing, const DecoderShape& model, DType dtype)
      : timing_(timing),
        model_(model),
        dtype_(dtype),
        factor_(some_numbers(4 * model.sequence, model.hidden, dtype)),
        weight_(some_numbers(model.hidden, model.hidden, dtype)) {}

  void measure(LinkModel& links, TrainingSystem& system) const {
    const Communicator node = world().node();
    const bool on_host = current_device() == Device::cpu, several = node.size() < world().size();
    links.local_gbs = 1e6;  // the work of a sum is part of what was measured
    links.levels = {link_of(node, "node", on_host)};
    if (on_host) {  // links are what chunks leave exposed
      system.overlaps_products = system.overlaps_weights = false;
      // Inside a host's shared cores a sum has nothing to wait for: it takes time that the products need.
      system.hidden_sums = timing_.turns() > 1 ? 0 : hidden_sums(node);
    }
    if (!several) return;
    links.levels.front().ranks = node.size();
    links.levels.front().ports = 1;
    const Communicator between = world().split(node.rank(), world().rank(), "calibration");
    if (on_host) system.hidden_sums_between = hidden_sums(between);
    LinkLevel network = link_of(between, "network", false);
    network.bandwidth_gbs *= node.size();  // all ranks of a node shared its port
    links.levels.push_back(network);
  }

 private:
  const Communicator& world() const { return timing_.world(); }

  // Returns the seconds that an all-reduce of [rows, hidden] adds to a product with that result. in_chunks: the exchange is
  // the library's chunked reduce-scatter and all-gather, as tensor parallelism calls them; the seconds are those that chunks
  // leave exposed, and include the exchange's own work on the cores.
  double added_seconds(const Communicator& group, std::int64_t rows, bool in_chunks) const {
    if (in_chunks) return added_by_chunks(group, rows);
    const Tensor x = factor_.view(0, {rows, model_.hidden});
    const Tensor y = Tensor::symmetric({rows, model_.hidden}, dtype_);
    const auto multiply = [&] { kernels::gemm(x, kernels::Transpose::no, weight_, kernels::Transpose::yes, y); };
    const auto multiply_and_sum = [&] {
      multiply();
      std::ignore = group.all_reduce(y, ReduceOp::sum, computation(), {.tag = "calibration"});
    };
    const std::vector<double> seconds =
        timing_.slowest_in_turn({[&] { return multiply; }, [&] { return multiply_and_sum; }});
    return std::max(0.0, seconds[1] - seconds[0]);
  }

  double added_by_chunks(const Communicator& group, std::int64_t rows) const {
    using kernels::Transpose;
    std::vector<std::int64_t> rows_of_ranks;
    rows_of_ranks.reserve(static_cast<std::size_t>(group.size()));
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
      gemm_reduce_scatter(x, rows_of_ranks, {weight_, Transpose::yes}, own, group, stream, options);
      all_gather_gemm(own, rows_of_ranks, {weight_, Transpose::yes}, y, gathered, group, stream, options);
    };
    const std::vector<double> seconds = timing_.slowest_in_turn({[&] { return multiply; }, [&] { return exchange; }});
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
      Work last;
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
      const Work work = sum();
      multiply();
      computation().wait(work);
    };
    products = std::max(1, static_cast<int>(std::round(timing_.slowest(sum_alone) / timing_.slowest(multiply))));
    const std::vector<double> seconds =
        timing_.slowest_in_turn({[&] { return sum_alone; }, [&] { return multiply; }, [&] { return both; }});
    return std::clamp((seconds[0] + seconds[1] - seconds[2]) / std::min(seconds[0], seconds[1]), 0.0, 1.0);
  }

  const Timing& timing_;
  const DecoderShape& model_;
  DType dtype_;
  Tensor factor_, weight_;  // of products beside exchanges
};

}  // namespace

void measure_links(const Timing& timing, const DecoderShape& model, DType dtype, LinkModel& links, TrainingSystem& system) {
  LinkMeasurement(timing, model, dtype).measure(links, system);
}

}  // namespace apps
