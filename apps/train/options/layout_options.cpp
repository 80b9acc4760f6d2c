#include "apps/train/options/layout_options.hpp"

#include <CLI/CLI.hpp>

#include "apps/common/fail.hpp"
#include "apps/common/size_text.hpp"
#include "apps/train/options/command_line.hpp"
#include "apps/train/options/layout_flags.hpp"

namespace apps {

using namespace stretto;

namespace {

std::string exposed_text(const LayoutCost& cost) {
  std::string text;
  for (const auto& [group, seconds] : cost.exposed) text += fmt::format(", exposes {:.1f} ms of {}", seconds * 1e3, group);
  return text;
}

}  // namespace

void add_layout_options(CLI::App& app, LayoutOptions& options) {
  app.add_option_function<std::string>(
         "--layout", [&](const std::string& name) { options.automatic = name == "auto"; },
         "auto: measure the machine, and choose what is not given of --tp, --pp, --cp, --ulysses, --sp, --micro-batch-size, "
         "--schedule, "
         "--virtual-stages, --zero and --recompute by the predicted time of a step")
      ->check(CLI::IsMember({"given", "auto"}))
      ->default_str("given");
  app.add_option("--cluster", options.cluster, "With --layout auto and --dry-run, the cluster to plan for, a JSON file");
}

void check_layout_options(const CLI::App& app, CommandLine& line) {
  LayoutOptions& options = line.layout;
  require(options.cluster.empty() || (options.automatic && line.dry_run),
          "--cluster {} describes a cluster to plan for; add --dry-run --layout auto, or leave it out.", options.cluster);
  if (!options.automatic) return;
  require(!line.dry_run || !options.cluster.empty(),
          "--dry-run --layout auto needs --cluster FILE, since no rank is started that could measure a machine.");
  require(
      !line.trainer.diloco.any(),
      "--diloco {} does not go with --layout auto, which predicts steps that all ranks share; give the layout of a replica.",
      line.trainer.diloco.sync_every);
  require(app.count("--global-batch-size") > 0,
          "--layout auto needs --global-batch-size, the sequences of a step, whatever the layout.");
  require(line.trainer.stages.blocks.empty(),
          "--pipeline-layers {} is of one number of stages; leave it out with --layout auto.",
          fmt::join(line.trainer.stages.blocks, ","));
  require(!line.trainer.saves_in_flight && !line.trainer.clips_by_step_before,
          "{} is not planned by --layout auto; give the layout, or leave it out.",
          line.trainer.saves_in_flight ? "--checkpoint-in-flight" : "--clip-by-step-before");
  for (const char* flag : {"--tp", "--pp", "--dp", "--cp", "--ulysses", "--sp", "--micro-batch-size", "--schedule",
                           "--virtual-stages", "--zero", "--recompute"}) {
    if (app.count(flag) > 0) options.given.insert(flag);
  }
}

LayoutSpace layout_space(const CommandLine& line, int ranks, std::int64_t memory_bytes) {
  const TrainingOptions& trainer = line.trainer;
  const auto is_given = [&](const char* flag) { return line.layout.given.count(flag) > 0; };
  LayoutSpace space{.model = trainer.model,
                    .adapters = trainer.adapters,
                    .ranks = ranks,
                    .global_batch = trainer.global_batch,
                    .memory_bytes = memory_bytes,
                    .sharding = trainer.sharding,
                    .optimizer = trainer.optimizer,
                    .mask = trainer.mask,
                    .sequence_layout = trainer.sequence_layout,
                    .keeps_gathered = trainer.keeps_gathered,
                    .tiles = trainer.tiles,
                    .partitions_activations = trainer.recompute.partition,
                    .activations_directory = trainer.recompute.directory};
  if (is_given("--tp")) space.tensor = line.trainer.mesh[Axis::tensor];
  if (is_given("--ulysses")) space.ulysses = line.trainer.mesh[Axis::ulysses];
  if (is_given("--cp")) space.ring = line.trainer.mesh[Axis::ring];
  if (is_given("--pp")) space.pipeline = line.trainer.mesh[Axis::pipeline];
  if (is_given("--dp")) space.data = line.trainer.mesh[Axis::data];
  if (is_given("--sp")) space.divides_rows = true;
  if (is_given("--micro-batch-size")) space.micro_batch = trainer.micro_batch;
  if (is_given("--schedule")) space.schedule = trainer.stages.schedule_name;
  if (is_given("--virtual-stages")) space.virtual_stages = trainer.stages.virtual_stages;
  if (is_given("--zero")) space.zero = trainer.sharding.zero;
  if (is_given("--recompute")) space.recompute = trainer.recompute.level;
  return space;
}

CommandLine with_layout(const CommandLine& line, const LayoutSpace& space, const LayoutSearch& search) {
  if (search.best.empty()) {
    require(search.tried > 0, "{}", refusal_text(space, search));
    fail(ErrorCode::invalid_argument, "None of {} layouts fits {} of memory; the smallest needs {}: start more ranks.",
         search.tried, size_text(static_cast<double>(space.memory_bytes)),
         size_text(static_cast<double>(search.least_memory)));
  }
  const TrainingOptions& layout = search.best.front().layout;
  CommandLine chosen = line;
  chosen.trainer.mesh = layout.mesh;
  chosen.trainer.micro_batch = layout.micro_batch;
  chosen.trainer.divides_rows = layout.divides_rows;
  chosen.trainer.stages = layout.stages;
  chosen.trainer.sharding.zero = layout.sharding.zero;
  chosen.trainer.recompute.level = layout.recompute.level;
  chosen.default_batch = false;
  return chosen;
}

std::string layout_report(const LayoutSearch& search) {
  std::string text =
      fmt::format("Of {} layouts, {} of which need too much memory, by the predicted time of a step:", search.tried,
                  search.without_memory);
  for (const FoundLayout& found : search.best) {
    const LayoutCost& cost = found.cost;
    text += fmt::format(
        "\n  {:>9.1f} ms {:>9.0f} tok/s {:>11}  {}: computes {:.1f} ms, updates {:.1f} ms, waits {:.1f} ms{}",
        cost.seconds * 1e3, cost.tokens_per_second, size_text(static_cast<double>(cost.memory.total())),
        to_string(found.layout), cost.computing * 1e3, cost.update * 1e3, cost.waiting * 1e3, exposed_text(cost));
  }
  return text + fmt::format("\nThe first is taken: {}", layout_flags(search.best.front().layout));
}

}  // namespace apps
