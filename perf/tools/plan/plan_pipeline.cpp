// stretto-plan pipeline: proves, simulates and draws the schedule of a pipeline's stages.
#include "plan/plan_pipeline.hpp"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/common/parse_flags.hpp"
#include "common/output_file.hpp"
#include "plan/plan_options.hpp"
#include "plan/plan_svg.hpp"
#include "plan/plan_verify.hpp"
#include "stretto/overlap/schedule.hpp"

namespace plan_tool {

bool parse(int argc, char** argv, PipelineLine& line) {
  CLI::App app(
      "Proves a pipeline schedule, and prints its bubble, its step time, and the microbatches under way by stage.\n"
      "'all --verify' proves every schedule that the library makes, at 1 to 16 stages, 1 to 64 microbatches and 1 to 4\n"
      "chunks a stage.",
      "stretto-plan pipeline");
  app.set_help_flag("-h,--help", "Print this help");
  auto* what = app.add_option("all", line.what, "With --verify: all schedules")->check(CLI::IsMember({"all"}));
  auto* verify = app.add_flag("--verify", line.verify, "Prove all schedules")->needs(what);
  auto* schedule = app.add_option("--schedule", line.schedule,
                                  fmt::format("{}, {}, or a file with a schedule", schedule_names(), window_names()));
  app.add_option("--pp", line.stages, "Number of stages")->needs(schedule);
  app.add_option("--microbatches", line.microbatches, "Of a step")->needs(schedule);
  app.add_option("--virtual-stages", line.chunks,
                 "Chunks of the model on each stage; when left out, 2 for interleaved and zb-v, 1 for the others")
      ->needs(schedule);
  app.add_option("--times", line.times,
                 "Seconds of a chunk's forward, its backward for the input and for the weights, and of a message")
      ->needs(schedule)
      ->delimiter(',')
      ->expected(4)
      ->check(CLI::Range(0.0, 1e9))
      ->default_str("1,1,1,0");
  app.add_option("--svg", line.svg, "Draw the schedule into this file")->needs(schedule);
  app.add_option("--json", line.json, "Write the figures to this file")->needs(schedule);
  app.add_option("--text", line.text, "Write the schedule to this file, which --schedule reads")->needs(schedule);
  what->needs(verify)->excludes(schedule);
  if (!apps::parse_flags(app, argc, argv)) return false;
  for (const auto& [flag, number] :
       {std::pair{"--pp", line.stages}, {"--microbatches", line.microbatches}, {"--virtual-stages", line.chunks}}) {
    require(number >= 1 || app.count(flag) == 0, "{} {} must be at least 1.", flag, number);
  }
  require(line.verify || !line.schedule.empty(), "Name a schedule with --schedule, or give 'all --verify'.");
  return true;
}

namespace {

// The schedule of a generator, or of a file.
Schedule schedule_of(const PipelineLine& line) {
  const std::vector<ScheduleKind> kinds = all_schedule_kinds();
  const bool is_made =
      std::ranges::any_of(kinds, [&](ScheduleKind kind) { return line.schedule == name(kind); }) ||
      std::ranges::any_of(all_window_kinds(), [&](const WindowKind& kind) { return line.schedule == kind.name; });
  require(!is_made || (line.stages > 0 && line.microbatches > 0), "--schedule {} needs --pp and --microbatches.",
          line.schedule);
  return named_schedule(line.schedule, line.stages, line.microbatches, line.chunks);
}

std::string work_of(const Schedule& schedule) {
  const std::string of_step = fmt::format("{} microbatch{}", schedule.microbatches, schedule.microbatches == 1 ? "" : "es");
  return schedule.steps == 1 ? of_step : fmt::format("{} steps of {}", schedule.steps, of_step);
}

// The first chunk has the kind's colour, later ones are paler.
std::string shade(unsigned color, int chunk, int chunks) {
  const double white = 0.55 * chunk / chunks;
  unsigned mixed = 0;
  for (const int shift : {16, 8, 0}) {
    const unsigned part = color >> shift & 255;
    mixed |= static_cast<unsigned>(part + white * (255 - part)) << shift;
  }
  return fmt::format("#{:06x}", mixed);
}

Picture picture_of(const Schedule& schedule, const ScheduleSimulation& result) {
  require(schedule.stages <= 64, "--svg draws up to 64 stages, not {}; choose fewer.", schedule.stages);
  // By ActionKind: F, B with W, B, W, sum, update.
  constexpr std::array colors{0x7ba7d7U, 0x8ecf9bU, 0x8ecf9bU, 0xf0a35eU, 0xc04040U, 0x404040U};
  Picture picture;
  picture.title = fmt::format("{}, {} stages, {}: {:.1f}% bubble", schedule.name, schedule.stages, work_of(schedule),
                              100 * result.bubble);
  picture.unit = "s";
  picture.row = "stage";
  picture.remark = "numbers: the microbatch";
  picture.ranks = schedule.stages;
  std::vector<std::size_t> looks;                         // the first of each kind
  const auto is_mark = [](const SimulatedAction& each) {  // it takes no time
    return each.action.kind == ActionKind::sum || each.action.kind == ActionKind::update;
  };
  for (std::size_t kind = 0; kind < colors.size(); ++kind) {
    const auto is_one = [&](const SimulatedAction& each) { return each.action.kind == static_cast<ActionKind>(kind); };
    const bool may_lack = kind >= static_cast<std::size_t>(ActionKind::sum);
    looks.push_back(picture.looks.size());
    if (may_lack && std::ranges::none_of(result.actions, is_one)) continue;
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      const std::string which = schedule.chunks > 1 ? fmt::format(", chunk {}", chunk) : "";
      picture.looks.push_back({name(static_cast<ActionKind>(kind)) + which, shade(colors[kind], chunk, schedule.chunks), 0});
    }
  }
  double shortest = result.last_end;
  for (const SimulatedAction& each : result.actions) {
    if (is_message(each.action.kind)) continue;
    const std::size_t look = looks[static_cast<std::size_t>(each.action.kind)] + static_cast<std::size_t>(each.action.chunk);
    const std::string label = is_mark(each) ? "" : std::to_string(each.action.microbatch);
    picture.bars.push_back({each.stage, 0, look, label, each.begin, each.end});
    if (each.end > each.begin) shortest = std::min(shortest, each.end - each.begin);
  }
  for (auto& bar : picture.bars) {
    if (bar.label.empty()) bar.end = bar.begin + shortest / 8;  // a mark
  }
  // Two digits need 18 pixels. If times differ much, the bound on the whole width decides.
  picture.pixels_a_unit = std::min(19 / std::max(shortest, 1e-12), 8000 / std::max(result.last_end, 1e-9));
  return picture;
}

void print(const Schedule& schedule, const ScheduleSimulation& result) {
  fmt::print("{}, {} stages, {}, {} {} a stage: proved\n", schedule.name, schedule.stages, work_of(schedule),
             schedule.chunks, schedule.chunks == 1 ? "chunk" : "chunks");
  fmt::print("bubble      {:.2f}% of the ideal step; a stage computes for {:.1f}% of the step\n", 100 * result.bubble,
             result.step > 0 ? 100 * result.ideal / result.step : 100.0);
  const bool repeats = std::ranges::max(result.versions) > 1 || std::ranges::max(result.delay) > 0;
  fmt::print("step        {:g} s {}; ideal {:g} s; the last stage ends at {:g} s{}\n", result.step,
             repeats ? "while the window repeats" : "from a stage's first computation to its last", result.ideal,
             result.last_end, repeats ? " after four windows" : "");
  fmt::print("under way   {} by stage: forward begun, backward of the input not ended\n", fmt::join(result.under_way, " "));
  fmt::print("unfinished  {} by stage: forward begun, gradients of the weights not ended\n",
             fmt::join(result.unfinished, " "));
  if (!repeats) return;
  fmt::print("versions    {} by stage: of the weights, at a time\n", fmt::join(result.versions, " "));
  fmt::print("delay       {} by stage: updates that the weights of a microbatch lack\n", fmt::join(result.delay, " "));
}

void write_json(const std::string& path, const Schedule& schedule, const ScheduleSimulation& result) {
  const nlohmann::ordered_json json = {
      {"schedule", schedule.name}, {"stages", schedule.stages},     {"microbatches", schedule.microbatches},
      {"chunks", schedule.chunks}, {"step", result.step},           {"ideal", result.ideal},
      {"bubble", result.bubble},   {"under_way", result.under_way}, {"versions", result.versions},
      {"delay", result.delay}};
  perf::write_file("--json", path, json.dump(1) + "\n");
}

void verify_all_schedules() {
  constexpr int most_stages = 16, most_microbatches = 64, most_chunks = 4;
  const auto begin = std::chrono::steady_clock::now();
  int all = 0;
  const auto prove = [&](const char* name, const auto& made) {
    const auto its_begin = std::chrono::steady_clock::now();
    int proved = 0;
    for (int stages = 1; stages <= most_stages; ++stages) {
      for (int microbatches = 1; microbatches <= most_microbatches; ++microbatches) {
        for (int chunks = 1; chunks <= most_chunks; ++chunks) {
          const std::optional<Schedule> schedule = made(stages, microbatches, chunks);
          if (!schedule) continue;
          check(*schedule);
          ++proved;
        }
      }
    }
    fmt::print("{:<18} {:>6} schedules {:>7.2f} s\n", name, proved, seconds_since(its_begin));
    std::fflush(stdout);
    all += proved;
  };
  for (const ScheduleKind kind : all_schedule_kinds()) {
    prove(name(kind), [&](int stages, int microbatches, int chunks) {
      return allows(kind, stages, microbatches, chunks) ? std::optional(make_schedule(kind, stages, microbatches, chunks))
                                                        : std::nullopt;
    });
  }
  for (const WindowKind& kind : all_window_kinds()) {
    prove(kind.name, [&](int stages, int microbatches, int chunks) {
      return chunks == 1 && microbatches >= stages ? std::optional(kind.make(stages, microbatches)) : std::nullopt;
    });
  }
  fmt::print("Proved {} schedules of 1 to {} stages, 1 to {} microbatches and 1 to {} chunks in {:.1f} s.\n", all,
             most_stages, most_microbatches, most_chunks, seconds_since(begin));
}

}  // namespace

void plan_pipeline_of(int argc, char** argv) {
  PipelineLine line;
  if (!parse(argc, argv, line)) return;
  if (line.verify) return verify_all_schedules();
  for (const auto& [flag, path] : {std::pair{"--svg", line.svg}, {"--json", line.json}, {"--text", line.text}}) {
    if (!path.empty()) perf::check_writable(flag, path);
  }
  const Schedule schedule = schedule_of(line);
  const ScheduleSimulation result = simulate(schedule, {line.times[0], line.times[1], line.times[2], line.times[3]});
  if (!line.svg.empty()) perf::write_file("--svg", line.svg, svg_of(picture_of(schedule, result)));
  print(schedule, result);
  if (!line.json.empty()) write_json(line.json, schedule, result);
  if (!line.text.empty()) perf::write_file("--text", line.text, to_text(schedule));
}

}  // namespace plan_tool
