// The programs that time kernels in one thread share this: flags, the clock, medians, and the file of figures.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/common/exit_status.hpp"
#include "apps/common/median.hpp"
#include "common/output_file.hpp"
#include "stretto/build.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"

namespace speed {

struct Options {
  std::vector<std::string> dtypes;
  int repetitions;
  std::string json;
};

// The thread's processor time, on which other programs on the machine have less influence.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using apps::median;

// main() of such a program: measure() returns a row of figures for each case, and its exit status is what `passes` says.
template <class Measure, class Passes>
int run(CLI::App& app, Options& options, int argc, char** argv, const Measure& measure, const Passes& passes) {
  const auto body = [&] {
    app.add_option("--dtypes", options.dtypes, "f64, f32, bf16, f16, as far as the kernels have them")->delimiter(',');
    app.add_option("--repetitions", options.repetitions, "Repetitions of each side, in turn")->check(CLI::PositiveNumber);
    app.add_option("--json", options.json, "A file for the results");
    CLI11_PARSE(app, argc, argv);
    if (!options.json.empty()) perf::check_writable("--json", options.json);
    std::printf("# %s, %s, one thread\n", stretto::processor_name().c_str(), stretto::vector_target().c_str());
    const nlohmann::ordered_json all = {{"cpu", stretto::processor_name()},
                                        {"vectors", stretto::vector_target()},
                                        {"version", stretto::build_version()},
                                        {"rows", measure()}};
    if (!options.json.empty()) perf::write_file("--json", options.json, all.dump(1) + "\n");
    return passes() ? 0 : 1;
  };
  return apps::exit_status(body, 2);
}

}  // namespace speed
