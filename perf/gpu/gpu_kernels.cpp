// Measures the speed of the kernels on a GPU: those that move bytes compared with a copy in the same run, those that
// multiply compared with the best rate of matrix products in the same run. Bytes are the least that a kernel must move: each
// input read once, each output written once. Times are the GPU's own (CUDA events). Several sets of buffers take turns, so
// that no call finds the data of the call before in the cache.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/common/exit_status.hpp"
#include "common/output_file.hpp"
#include "gpu_timing.hpp"
#include "kernel_cases.hpp"
#include "stretto/device.hpp"

namespace {

using namespace stretto;
using perf::Case;
using perf::device_seconds;

constexpr double set_bytes = 1 << 30;  // least size of all sets of a case together: many times any cache
constexpr int most_sets = 8;

double seconds_of(const Case& what) {
  const int sets = what.bytes > 0 ? static_cast<int>(std::clamp(set_bytes / what.bytes + 1, 1.0, 1.0 * most_sets)) : 2;
  std::vector<std::function<void()>> calls;
  calls.reserve(static_cast<std::size_t>(sets));
  for (int set = 0; set < sets; ++set) calls.push_back(what.make());
  return device_seconds([&](int call) { calls[static_cast<std::size_t>(call) % calls.size()](); });
}

struct Options {
  std::vector<std::string> kernels;
  std::string json;
};

double copied_a_second() {
  const Case baseline = perf::copy_case();
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
  std::vector<Case> cases = perf::collective_cases();
  for (const auto& more : {perf::row_cases(), perf::product_cases()}) cases.insert(cases.end(), more.begin(), more.end());
  for (const Case& each : cases) {
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

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
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
