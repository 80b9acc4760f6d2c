// Times updates whose state lies in a file of a disk of a given rate (TokenGate), and which take a given time to compute:
// with reads and writes beside them, and with each read and write waited for. offload.py runs this program and reads its
// line.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "stretto/launch.hpp"
#include "stretto/layers/optimizer.hpp"

namespace {

using namespace stretto;

struct Sizes {
  std::string directory;
  int units = 16, steps = 3;
  std::int64_t unit_bytes = std::int64_t{1} << 20;  // of state
  double rate = 100e6;                              // bytes a second
  double seconds = 0.02;                            // that a unit's update computes
};

class SleepingOptimizer : public Optimizer {
 public:
  SleepingOptimizer(ShardedParameters& parameters, double seconds)
      : Optimizer(parameters, {.name = "sleeping", .slots = {{"m"}}}), seconds_(seconds) {}

 private:
  void update(const ShardedParameters::Range& /*range*/, const Parameter& /*parameter*/, const State& /*state*/,
              const Step& /*step*/) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_));
  }
  double seconds_;
};

// The seconds of the fastest of some steps that only update, until all is written.
double step_seconds(const Communicator& world, const Sizes& sizes, bool overlap) {
  const Mesh mesh(world, {});
  Parameters parameters;
  const std::int64_t elements = sizes.unit_bytes / 4;
  for (int i = 0; i < sizes.units; ++i) {
    parameters.used_together({&parameters.add(Parameter::whole("p" + std::to_string(i), {elements}, token_axes, {}))});
  }
  ShardedParameters::Options options;
  options.unit_bytes = static_cast<std::size_t>(sizes.unit_bytes);
  options.overlap = overlap;
  options.offload = {.optimizer = {sizes.directory}, .gate = std::make_shared<TokenGate>(sizes.rate)};
  ShardedParameters sharded(parameters, mesh, options);
  SleepingOptimizer optimizer(sharded, sizes.seconds);
  double best = std::numeric_limits<double>::infinity();
  for (int step = 0; step < sizes.steps; ++step) {
    sharded.begin_step();
    for (const auto& used : parameters.used()) const InUse in_use(sharded, *used, Pass::backward);
    sharded.end_microbatch();
    sharded.finish_sums();
    const double begin = now_seconds();
    optimizer.step(1, 1);
    optimizer.states();  // waits for the last write
    best = std::min(best, now_seconds() - begin);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  Sizes sizes;
  CLI::App app("Times updates with state in a file of a disk of a given rate");
  app.add_option("--directory", sizes.directory, "Where the file is")->required();
  app.add_option("--units", sizes.units, "Units of parameters")->check(CLI::PositiveNumber);
  app.add_option("--unit-bytes", sizes.unit_bytes, "State of a unit")->check(CLI::PositiveNumber);
  app.add_option("--rate", sizes.rate, "Bytes a second, reads and writes together")->check(CLI::PositiveNumber);
  app.add_option("--seconds", sizes.seconds, "That a unit's update computes")->check(CLI::NonNegativeNumber);
  app.add_option("--steps", sizes.steps, "Of which the fastest counts")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return launch(1, [&](const Communicator& world) {
    const double beside = step_seconds(world, sizes, true), waited = step_seconds(world, sizes, false);
    const double block = static_cast<double>(sizes.unit_bytes) / sizes.rate;
    std::printf(R"({"compute_s": %.6f, "files_s": %.6f, "block_s": %.6f, "beside_s": %.6f, "waited_s": %.6f})"
                "\n",
                sizes.units * sizes.seconds, 2 * sizes.units * block, block, beside, waited);
  });
}
