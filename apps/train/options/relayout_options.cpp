#include "apps/train/options/relayout_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/common/fail.hpp"
#include "apps/train/options/command_line.hpp"
#include "apps/train/options/foreign_names.hpp"
#include "apps/train/options/number_flags.hpp"
#include "apps/train/options/pipeline_options.hpp"
#include "apps/train/options/precision_options.hpp"
#include "apps/train/options/sequence_options.hpp"
#include "apps/train/options/zero_options.hpp"

namespace apps {

using namespace stretto;

namespace {

// The others of the functions that add flags of layouts are of a training, whatever its layout.
constexpr const char* layout_flag_names[] = {"--tp",
                                             "--pp",
                                             "--dp",
                                             "--cp",
                                             "--ulysses",
                                             "--sp",
                                             "--cp-layout",
                                             "--sp-keep-gathered",
                                             "--schedule",
                                             "--zero",
                                             "--tiles",
                                             "--virtual-stages",
                                             "--pipeline-layers",
                                             "--prefetch",
                                             "--hpz-size",
                                             "--recompute",
                                             "--partition-activations",
                                             "--micro-batch-size"};

TrainingOptions changed(TrainingOptions trainer, const std::string& flags) {
  CLI::App app("", "stretto-train");
  app.set_help_flag();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const StageDivision before = trainer.stages;
  trainer.mesh[Axis::data] = 0;  // follows from the ranks, unless --dp is given
  app.add_option("--tensor-model-parallel-size,--tp", trainer.mesh[Axis::tensor]);
  app.add_option("--dp", trainer.mesh[Axis::data]);
  app.add_option("--micro-batch-size", trainer.micro_batch);
  add_sequence_options(app, trainer);
  add_pipeline_options(app, trainer);
  add_precision_options(app, trainer);
  add_zero_options(app, trainer);
  check_numbers(app);
  try {
    app.parse(flags);
  } catch (const CLI::ParseError& error) {
    for (const std::string& word : app.remaining()) {
      require(!word.starts_with('-'), "{} is not of a layout, and stays as it is; leave it out.", word);
    }
    refuse_command_line(app, error, foreign_names());
  }
  for (const CLI::Option* option : app.get_options([](CLI::Option* each) { return each->count() > 0; })) {
    const bool is_of_layout =
        std::ranges::any_of(layout_flag_names, [&](const char* name) { return app.get_option(name) == option; });
    require(is_of_layout, "{} is not of a layout, and stays as it is; leave it out.", option->get_name());
  }
  check_sequence_options(app, trainer);
  check_zero_options(app, trainer);
  // A number of parts is of one schedule, and a division of one number of parts.
  if (app.count("--schedule") > 0 && app.count("--virtual-stages") == 0) trainer.stages.virtual_stages = 0;
  const bool has_other_parts = app.count("--pp") > 0 || trainer.stages.virtual_stages != before.virtual_stages;
  if (has_other_parts && app.count("--pipeline-layers") == 0) trainer.stages.blocks.clear();
  return trainer;
}

// Returns the flag that keeps a training in its layout, and why it does; null if there is none.
const char* obstacle(const CommandLine& line) {
  const TrainingOptions& trainer = line.trainer;
  if (line.layout.automatic) return "--layout auto, which chooses one layout";
  if (trainer.diloco.any()) return "--diloco, whose replicas exchange by the places of one layout";
  if (!line.trace.empty()) return "--trace, which draws the ranks of one layout";
  if (line.device != Device::cpu) return "--device cuda: state moves between host memories only";
  if (trainer.sharding.offload.any() || !trainer.recompute.directory.empty()) {
    return "--offload, whose files are of one layout";
  }
  if (trainer.adapters.base != StoredFormat::plain) return "--base, which stores the base by the shares of one layout";
  if (!line.with.empty()) return "--with-adapter, whose adapters are weighed when they are loaded";
  if (trainer.sharding.qgz_error_feedback ||
      (trainer.sharding.qgz != QuantizedFormat::none && trainer.sharding.qgz_rounding == Rounding::stochastic)) {
    return "--qgz-error-feedback and --qgz-stochastic, whose errors and random numbers are of one layout";
  }
  if (trainer.sharding.powersgd.any()) return "--powersgd, whose errors and factors are of one layout";
  if (std::holds_alternative<OneBitAdam::Options>(trainer.optimizer)) {
    return "--optimizer onebit-adam, whose errors are of one layout";
  }
  if (std::holds_alternative<DeMo::Options>(trainer.optimizer)) {
    return "--optimizer demo, whose momentum is of one layout";
  }
  return nullptr;
}

}  // namespace

void add_relayout_options(CLI::App& app, RelayoutFlags& flags) {
  app.add_option(
         "--relayout-at", flags.at,
         "A step and, in quotes, flags of a layout in which training goes on behind it, such as 100 \"--tp 2 --pp 2\": "
         "state moves between the ranks in memory. Give the flag once for each change")
      ->type_name("STEP FLAGS")
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--relayout-on-signal", flags.on_signal,
                 "In quotes, flags of a layout in which training goes on behind the step in which SIGUSR2 comes. Give the "
                 "flag once for each further SIGUSR2")
      ->type_name("FLAGS")
      ->allow_extra_args(false)
      ->take_all();
}

std::string Relayout::name() const { return on_signal ? "--relayout-on-signal" : fmt::format("--relayout-at {}", step); }

std::vector<Relayout> relayouts_of(const RelayoutFlags& flags, const TrainingOptions& first) {
  std::vector<Relayout> result;
  for (const auto& [step, its] : flags.at) result.push_back({step, false, its, {}});
  for (const std::string& its : flags.on_signal) result.push_back({0, true, its, {}});
  const TrainingOptions* before = &first;
  for (Relayout& each : result) {
    try {
      each.trainer = changed(*before, each.flags);
    } catch (const Error& error) {
      fail(error.code(), "{} '{}': {}", each.name(), each.flags, error.what());
    }
    before = &each.trainer;
  }
  return result;
}

void check_rejoin(const CommandLine& line, int ranks) {
  require(line.rejoin >= 0, "--rejoin {} is no number of starts; give 1 or more, or 0 for none.", line.rejoin);
  if (line.rejoin == 0) return;
  require(
      line.elastic && line.nproc > 0,
      "--rejoin {} starts processes for ranks of --nproc that are lost while --elastic lets the others go on; give both, "
      "or leave it out.",
      line.rejoin);
  const char* const what = obstacle(line);
  require(what == nullptr, "--rejoin {} does not go with {}; leave one of them out.", line.rejoin,
          what == nullptr ? "" : what);
  require(!is_window(line.trainer.on(line.mesh_on(ranks)).check()),
          "--rejoin {} takes ranks in between two steps, where --schedule {} has no flush; leave one of them out.",
          line.rejoin, line.trainer.stages.schedule_name);
}

void check_relayouts(const CommandLine& line, int ranks) {
  if (line.relayouts.empty()) return;
  const char* const what = line.elastic ? "--elastic, which follows a layout's replicas" : obstacle(line);
  const std::string name = line.relayouts.front().name();
  require(what == nullptr, "{} does not go with {}; leave one of them out.", name, what == nullptr ? "" : what);
  require(line.relayouts.front().on_signal == line.relayouts.back().on_signal,
          "{} and --relayout-on-signal each say when the layout changes; leave one of them out.", name);
  std::int64_t before = 0;
  for (const Relayout& each : line.relayouts) {
    require(!each.on_signal || line.steps > 1,
            "{} changes the layout behind a step that another one follows, and there are {}; leave it out.", name,
            line.steps);
    require(each.on_signal || (each.step > before && each.step < line.steps),
            "--relayout-at {} is not between step {} and the last one, {}; give a step behind which training goes on, in "
            "ascending order.",
            each.step, before, line.steps);
    before = each.step;
  }
  const auto require_flush = [&](const TrainingOptions& trainer, const std::string& where) {
    require(!is_window(trainer.on(line.laid_out(trainer).mesh_on(ranks)).check()),
            "--schedule {}{} has no flush between steps, where a layout could change; choose one with a flush, or leave {} "
            "out.",
            trainer.stages.schedule_name, where, name);
  };
  require_flush(line.trainer, "");
  for (const Relayout& each : line.relayouts) {
    try {
      const CommandLine other = line.laid_out(each.trainer);
      other.check_layout(ranks);
      require_flush(each.trainer, " of the layout");
    } catch (const Error& error) {
      fail(error.code(), "{} '{}': {}", each.name(), each.flags, error.what());
    }
  }
}

}  // namespace apps
