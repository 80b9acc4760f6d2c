// Measures how much communication of ranks that share a GPU is hidden behind their matrix products. A step runs in full,
// without communication, without computation, and with a wait after every operation. There are two kinds of steps: gradients
// of a backward pass that are summed while the next ones are computed, and parameters that are gathered while the layer
// before computes. Ranks are threads; their communication consists of copies in the GPU's memory and, for sums, of kernels.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/common/exit_status.hpp"
#include "common/output_file.hpp"
#include "gpu_data.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/overlap/rehearsal.hpp"
#include "stretto/stretto.hpp"

namespace {

using namespace stretto;
using kernels::Transpose;

struct Options {
  int ranks = 2;
  std::int64_t layers = 16, hidden = 4096;
  std::vector<std::int64_t> rows{4096, 8192, 16384};
  int rounds = 7;
  std::string json;
};

// A layer's gradient is dy^T x.
std::function<void()> summed_gradients(const Communicator& world, const Options& options, std::int64_t rows) {
  const std::int64_t hidden = options.hidden;
  const Tensor input = perf::random({rows, hidden}, DType::bf16);
  std::vector<Tensor> gradients;
  for (std::int64_t i = 0; i < options.layers; ++i) gradients.push_back(Tensor::zeros({hidden, hidden}, DType::bf16));
  const Stream stream("gradients", Priority::urgent);
  return [=] {
    std::vector<Work> sums;
    for (const Tensor& gradient : gradients) {
      kernels::gemm(input, Transpose::yes, input, Transpose::no, gradient);
      sums.push_back(world.all_reduce(gradient, ReduceOp::sum, stream));
    }
    for (const Work& sum : sums) computation().wait(sum);
  };
}

// Each rank keeps a share of every weight; two whole weights take turns.
std::function<void()> gathered_parameters(const Communicator& world, const Options& options, std::int64_t rows) {
  const std::int64_t hidden = options.hidden;
  const std::int64_t share = hidden * hidden / world.size();
  const Tensor input = perf::random({rows, hidden}, DType::bf16);
  const Tensor output({rows, hidden}, DType::bf16);
  std::vector<Tensor> shares;
  for (std::int64_t i = 0; i < options.layers; ++i) shares.push_back(Tensor::zeros({share}, DType::bf16));
  const std::vector<Tensor> weights{Tensor::zeros({hidden, hidden}, DType::bf16),
                                    Tensor::zeros({hidden, hidden}, DType::bf16)};
  const Stream stream("parameters", Priority::urgent);
  return [=] {
    const auto gather = [&](std::size_t layer) {  // after the product that used this buffer before
      return world.all_gather(shares[layer].raw(), weights[layer % 2].raw(), share, DType::bf16, stream);
    };
    Work arriving = gather(0);
    for (std::size_t layer = 0; layer < shares.size(); ++layer) {
      computation().wait(arriving);
      if (layer + 1 < shares.size()) arriving = gather(layer + 1);
      kernels::gemm(input, Transpose::no, weights[layer % 2], Transpose::yes, output);
    }
  };
}

void run(const Options& options) {
  nlohmann::ordered_json all{{"gpu", ""},
                             {"ranks", options.ranks},
                             {"layers", options.layers},
                             {"hidden", options.hidden},
                             {"rows", nlohmann::ordered_json::array()}};
  run_threads(options.ranks, [&](const Communicator& world) {
    const OnDevice device(Device::cuda);
    const bool speaks = world.rank() == 0;
    if (speaks) {
      all["gpu"] = gpu_info()->name;
      std::printf("# %s, %d ranks; %lld layers of %lld x %lld, bf16; milliseconds a step\n", gpu_info()->name.c_str(),
                  world.size(), static_cast<long long>(options.layers), static_cast<long long>(options.hidden),
                  static_cast<long long>(options.hidden));
      std::printf("%-20s %6s %9s %9s %9s %9s %9s %10s\n", "step", "rows", "full", "compute", "comm", "serial", "exposed",
                  "efficiency");
    }
    using Make = std::function<void()> (*)(const Communicator&, const Options&, std::int64_t);
    const std::pair<const char*, Make> cases[] = {{"summed_gradients", summed_gradients},
                                                  {"gathered_parameters", gathered_parameters}};
    for (const auto& [name, make] : cases) {
      for (const std::int64_t rows : options.rows) {
        const OverlapTimes times = measure_overlap(world, make(world, options, rows), {.rounds = options.rounds});
        if (!speaks) continue;
        std::printf("%-20s %6lld %9.3f %9.3f %9.3f %9.3f %9.3f %10.2f\n", name, static_cast<long long>(rows),
                    times.full * 1e3, times.computation * 1e3, times.communication * 1e3, times.serial * 1e3,
                    times.exposed() * 1e3, times.efficiency());
        std::fflush(stdout);
        nlohmann::ordered_json row{{"step", name}, {"rows", rows}};
        for (const auto& [figure, value] : times.figures()) row[figure] = value;
        all["rows"].push_back(row);
        if (!options.json.empty()) perf::write_file("--json", options.json, all.dump(1) + "\n");
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  Options options;
  CLI::App app("Measures how much communication is hidden behind matrix products on one GPU");
  app.add_option("--ranks", options.ranks, "Threads that share the GPU")->check(CLI::Range(2, 8));
  app.add_option("--layers", options.layers)->check(CLI::PositiveNumber);
  app.add_option("--hidden", options.hidden)->check(CLI::PositiveNumber);
  app.add_option("--rows", options.rows, "Tokens of a rank; several are measured one after the other")->delimiter(',');
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--json", options.json, "A file for the results");
  CLI11_PARSE(app, argc, argv);
  const auto body = [&] {
    if (!options.json.empty()) perf::check_writable("--json", options.json);
    run(options);
    return 0;
  };
  return apps::exit_status(body, 2);
}
