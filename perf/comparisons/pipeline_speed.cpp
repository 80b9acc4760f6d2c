// Times the messages and waits of a pipeline schedule alone: its computations only sleep, so that many stages share few
// cores. pipeline_layouts.py runs this program and reads its line.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "stretto/launch.hpp"
#include "stretto/overlap/pipeline.hpp"
#include "stretto/tensor.hpp"

namespace {

using namespace stretto;

// A backward takes twice as long as a forward.
class Sleeper : public PipelineStage {
 public:
  Sleeper(double forward, Shape message) : forward_(forward), message_(std::move(message)) {}
  Tensor compute(const Action& action, Tensor input) override {
    const bool is_forward = action.kind == ActionKind::forward;
    if (!is_forward && action.kind != ActionKind::backward) return {};
    std::this_thread::sleep_for(std::chrono::duration<double>(is_forward ? forward_ : 2 * forward_));
    return input.size() > 0 ? std::move(input) : Tensor::zeros(message_, DType::f32);
  }

 private:
  double forward_;
  Shape message_;
};

}  // namespace

int main(int argc, char** argv) {
  int stages = 4, steps = 50;
  std::string name = "2bw";
  double forward_ms = 10;
  std::int64_t bytes = 256 << 10;
  CLI::App app("Measures a schedule of pipeline stages that sleep");
  app.add_option("--stages", stages)->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "Of as many microbatches as stages")->check(CLI::PositiveNumber);
  app.add_option("--schedule", name);
  app.add_option("--forward-ms", forward_ms);
  app.add_option("--message-bytes", bytes);
  CLI11_PARSE(app, argc, argv);
  return launch(stages, [&](const Communicator& world) {
    Schedule schedule = named_schedule(name, stages, stages);
    const bool flushes = !is_window(schedule);
    Pipeline pipeline(world, std::move(schedule), {});
    const Shape message{bytes / 4};
    Sleeper stage(forward_ms / 1e3, message);
    const auto run = [&](int count) {
      if (!flushes) return pipeline.run_windows(stage, count, message, DType::f32);
      for (int step = 0; step < count; ++step) pipeline.run(stage, message, DType::f32);
    };
    run(2);
    world.barrier(Stream::inline_()).wait();
    const double begin = now_seconds();
    run(steps);
    world.barrier(Stream::inline_()).wait();
    const double step_ms = (now_seconds() - begin) / steps * 1e3;
    const Pipeline::Times times = pipeline.times();
    if (world.rank() != 0) return;
    const nlohmann::ordered_json result{
        {"step_ms", step_ms}, {"simulated_ms", times.simulated * 1e3}, {"pipeline_ms", times.measured * 1e3}};
    std::printf("%s\n", result.dump().c_str());
  });
}
