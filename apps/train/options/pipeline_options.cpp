#include "apps/train/options/pipeline_options.hpp"

#include <CLI/CLI.hpp>
#include <charconv>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

std::vector<std::int64_t> numbers_in(const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (const char *next = text.data(), *const end = next + text.size(); next <= end; ++next) {
    const auto [behind, error] = std::from_chars(next, end, numbers.emplace_back());
    require(error == std::errc() && (behind == end || *behind == ','),
            "--pipeline-layers '{}' is no list of numbers; write them with commas between them, such as 3,4,4,2.", text);
    next = behind;
  }
  return numbers;
}

}  // namespace

void add_pipeline_options(CLI::App& app, stretto::TrainingOptions& trainer) {
  stretto::StageDivision& options = trainer.stages;
  app.add_option("--pipeline-model-parallel-size,--pp", trainer.mesh[stretto::Axis::pipeline],
                 "Pipeline stages, which share the layers")
      ->capture_default_str();
  app.add_option("--schedule", options.schedule_name,
                 fmt::format("Order of a pipeline's computations: {}; without a flush {}; or a file",
                             stretto::schedule_names(), stretto::window_names()))
      ->capture_default_str();
  app.add_option(
         "--virtual-stages", options.virtual_stages,
         "Parts of the model that each stage holds; when left out, 2 with interleaved and zb-v, a file's own number, else 1")
      ->check(CLI::Range(1, 4096));
  app.add_option_function<std::string>(
      "--pipeline-layers", [&](const std::string& text) { options.blocks = numbers_in(text); },
      "Layers of each part of the model, such as 3,4,4,2; divided by their cost when left out");
  app.add_option("--pipemare-annealing", trainer.pipemare.annealing_steps,
                 "With --schedule pipemare, steps in which the lower learning rates of early stages rise to --lr")
      ->default_str("a quarter of --train-iters");
  app.add_option("--pipemare-decay", trainer.pipemare.decay,
                 "With --schedule pipemare, D of the corrected weights: a stage keeps D^(1/delay) of earlier changes")
      ->capture_default_str();
}

std::string check_pipeline_options(const CLI::App& app, std::int64_t steps, stretto::PipeMareOptions& options) {
  std::string given;
  for (const char* const flag : {"--pipemare-annealing", "--pipemare-decay"}) {
    if (app.count(flag) > 0) given += (given.empty() ? "" : " and ") + std::string(flag);
  }
  if (app.count("--pipemare-annealing") == 0) options.annealing_steps = steps / 4;
  options.check();
  return given;
}

}  // namespace apps
