// stretto-plan step: plans the communication of a GPT-like training step on a cluster that need not exist.
#include "plan/plan_step.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "apps/common/parse_flags.hpp"
#include "common/output_file.hpp"
#include "plan/plan_options.hpp"
#include "stretto/planning/planner.hpp"

namespace plan_tool {

bool parse(int argc, char** argv, StepLine& line) {
  CLI::App app(
      "Plans the communication of a training step of a GPT-like model: how it is split, bucketed, postponed and\n"
      "prefetched, and in which order. Prints the simulated time of the step beside plainer schedules.",
      "stretto-plan step");
  app.set_help_flag("-h,--help", "Print this help");
  app.add_option("--ranks", line.ranks, "Number of ranks: dp x tp")->required()->check(CLI::PositiveNumber);
  app.add_option("--ranks-per-node", line.ranks_per_node, "Ranks of a node of the cluster; default as in the link file");
  app.add_option("--dp", line.data, "Ranks of data parallelism; default ranks / tp");
  app.add_option("--tp", line.tensor, "Ranks of tensor parallelism, which are neighbours")->capture_default_str();
  app.add_option("--zero", line.zero, "0, or 3: parameters lie in shares, and are gathered")
      ->capture_default_str()
      ->check(CLI::IsMember({0, 3}));
  app.add_option("--live-gathers", line.live_gathers, "With --zero 3: the most layers that may be gathered at a time")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--parts", line.parts, "Parts of a layer's backward whose gradients become ready one by one")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  for (auto [flag, value, meaning] :
       {std::tuple{"--layers", &line.layers, "Layers of the model"},
        std::tuple{"--hidden", &line.hidden, "Width of a layer"}, std::tuple{"--sequence", &line.sequence, "Tokens"},
        std::tuple{"--micro-batch", &line.micro_batch, "Sequences of a data-parallel rank"}}) {
    app.add_option(flag, *value, meaning)->capture_default_str()->check(CLI::PositiveNumber);
  }
  app.add_option("--links", line.links, "The cluster's links, a JSON file")->required();
  app.add_option("--gflops", line.gflops, "Speed of a rank, in 1e9 operations a second")
      ->required()
      ->check(CLI::PositiveNumber);
  app.add_option("--slowdown", line.slowdown, "How much longer computation takes beside communication: 0.1 is 10%")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", line.json, "Write the figures to this file as well");
  if (!apps::parse_flags(app, argc, argv)) return false;
  require(line.ranks_per_node >= 0, "--ranks-per-node {} cannot be negative.", line.ranks_per_node);
  require(line.tensor >= 1 && line.ranks % line.tensor == 0, "--tp {} does not divide --ranks {}.", line.tensor, line.ranks);
  if (line.data == 0) line.data = line.ranks / line.tensor;
  require(line.data * line.tensor == line.ranks, "--dp {} x --tp {} are not --ranks {}.", line.data, line.tensor,
          line.ranks);
  return true;
}

namespace {

StepCluster cluster_of(const StepLine& line) {
  StepCluster cluster{link_model_from_file(line.links), line.ranks};
  if (line.ranks_per_node > 0) {
    require(cluster.links.levels.size() > 1 || line.ranks_per_node >= line.ranks,
            "--ranks-per-node {} makes nodes, but the links of {} have one level; add one between nodes.",
            line.ranks_per_node, line.links);
    if (cluster.links.levels.size() > 1) cluster.links.levels.front().ranks = line.ranks_per_node;
  }
  return cluster;
}

// A layer has 12 hidden^2 weights and attention; backward is twice forward. Adam reads and writes 28 bytes a parameter.
TransformerStep step_of(const StepLine& line, const LinkModel& links) {
  const double hidden = line.hidden, sequence = line.sequence, batch = line.micro_batch;
  const double operations = 24 * batch * sequence * hidden * hidden + 4 * batch * sequence * sequence * hidden;
  const double forward = operations / line.tensor / (line.gflops * 1e9);
  const std::int64_t parameters = std::int64_t{12} * line.hidden * line.hidden / line.tensor;
  const double owned = static_cast<double>(parameters) / (line.zero == 3 ? line.data : 1);
  TransformerStep step;
  step.layers.assign(line.layers, {forward, 2 * forward, 28 * owned / (links.local_gbs * 1e9)});
  step.parameters.assign(line.layers, parameters);
  step.data = {line.data, line.tensor};
  step.tensor = {line.tensor, 1};
  step.activations = std::int64_t{line.micro_batch} * line.sequence * line.hidden;
  step.attention_share = sequence / (6 * hidden + sequence);
  step.most_live_gathers = line.live_gathers;
  step.backward_parts = line.parts;
  return step;
}

void print(const StepLine& line, const StepSchedule& schedule, double searched) {
  fmt::print("{} layers of {}, {} x {} tokens, dp {} x tp {}{}, {}\n", line.layers, line.hidden, line.micro_batch,
             line.sequence, line.data, line.tensor, line.zero == 3 ? ", ZeRO-3" : "", line.links);
  fmt::print("{}", schedule.to_string());
  const auto beside = [&](const char* schedule_name, double seconds) {
    fmt::print("{:<46} {:>12.3f} ms  {:>6.3f}x\n", schedule_name, milliseconds(seconds),
               seconds / schedule.predicted_seconds);
  };
  beside("planned", schedule.predicted_seconds);
  beside("no partition, blocking", schedule.blocking_seconds);
  beside("no partition, as early as possible", schedule.unpartitioned_seconds);
  beside("buckets of 25 MiB only, the first of 1 MiB", schedule.buckets_seconds);
  beside("those buckets, and all by level", schedule.by_level_seconds);
  beside("no schedule can be faster than", schedule.bound_seconds);
  fmt::print("planned in {:.2f} s\n", searched);
}

std::vector<std::size_t> indices(const std::vector<bool>& flags) {
  std::vector<std::size_t> set;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) set.push_back(i);
  }
  return set;
}

void write_json(const std::string& path, const StepSchedule& schedule) {
  nlohmann::ordered_json json = {{"planned_ms", milliseconds(schedule.predicted_seconds)},
                                 {"blocking_ms", milliseconds(schedule.blocking_seconds)},
                                 {"unpartitioned_ms", milliseconds(schedule.unpartitioned_seconds)},
                                 {"buckets_ms", milliseconds(schedule.buckets_seconds)},
                                 {"by_level_ms", milliseconds(schedule.by_level_seconds)},
                                 {"bound_ms", milliseconds(schedule.bound_seconds)},
                                 {"computing_ms", milliseconds(schedule.computing_seconds)},
                                 {"inside_ms", milliseconds(schedule.inside_seconds)},
                                 {"between_ms", milliseconds(schedule.between_seconds)},
                                 {"choice", schedule.choice()},
                                 {"bucket_bytes", schedule.knobs.bucket_bytes},
                                 {"first_bucket_bytes", schedule.knobs.first_bucket_bytes},
                                 {"postponed", indices(schedule.knobs.postponed)},
                                 {"ahead", schedule.knobs.ahead},
                                 {"reasons", schedule.reasons}};
  for (const ScheduledCollective& each : schedule.collectives) {
    nlohmann::ordered_json made = {{"name", each.name},
                                   {"collective", name(each.kind.kind)},
                                   {"carries", name(each.kind.payload)},
                                   {"bytes", each.bytes},
                                   {"ranks", each.kind.group.size},
                                   {"form", name(each.partition.form)},
                                   {"chunks", each.partition.chunks},
                                   {"issued_after", each.issued_after},
                                   {"stream", each.stream},
                                   {"priority", name(each.priority)},
                                   {"bucket", each.bucket},
                                   {"stages", nlohmann::ordered_json::array()},
                                   {"postponed", nlohmann::ordered_json::array()}};
    for (const StepStage& stage : each.stages) made["stages"].push_back(to_string(stage));
    for (const StepStage& stage : each.postponed) made["postponed"].push_back(to_string(stage));
    json["collectives"].push_back(std::move(made));
  }
  perf::write_file("--json", path, json.dump(1) + "\n");
}

}  // namespace

void plan_step_of(int argc, char** argv) {
  StepLine line;
  if (!parse(argc, argv, line)) return;
  if (!line.json.empty()) perf::check_writable("--json", line.json);
  const StepCluster cluster = cluster_of(line);
  const TransformerStep step = step_of(line, cluster.links);
  const auto begin = std::chrono::steady_clock::now();
  const StepGraph graph = line.zero == 3 ? zero3_step(step) : data_parallel_step(step);
  const StepSchedule schedule = plan_step(graph, cluster, line.slowdown);
  print(line, schedule, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  if (!line.json.empty()) write_json(line.json, schedule);
}

}  // namespace plan_tool
