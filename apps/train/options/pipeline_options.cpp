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

void add_pipeline_options(CLI::App& app, int& stages, stretto::StageDivision& options) {
  app.add_option("--pipeline-model-parallel-size,--pp", stages, "Pipeline stages, which share the layers")
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
}

}  // namespace apps
