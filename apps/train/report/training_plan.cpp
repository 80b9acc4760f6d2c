#include "apps/train/report/training_plan.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "apps/common/fail.hpp"
#include "apps/common/size_text.hpp"
#include "stretto/output_file.hpp"

namespace apps {

using namespace stretto;

namespace {

using Kind = std::pair<MemoryKind, std::int64_t TrainingMemory::*>;
constexpr std::array<Kind, 5> kinds = {{{MemoryKind::values, &TrainingMemory::values},
                                        {MemoryKind::gradients, &TrainingMemory::gradients},
                                        {MemoryKind::optimizer, &TrainingMemory::optimizer},
                                        {MemoryKind::activations, &TrainingMemory::activations},
                                        {MemoryKind::buffers, &TrainingMemory::buffers}}};

std::string amount(std::int64_t bytes) { return size_text(static_cast<double>(bytes)); }

// The bytes that are held now, or for kinds that come and go the most so far.
std::int64_t measured(MemoryKind kind) {
  const MemoryUse use = memory_use(kind);
  const bool comes_and_goes = kind == MemoryKind::activations || kind == MemoryKind::buffers;
  return static_cast<std::int64_t>(comes_and_goes ? use.peak_bytes : use.bytes);
}

std::string which(const TrainingPlan& plan, std::size_t stage, const char* does) {
  return plan.stages.size() > 1 ? fmt::format(" of stage {}, which {} most,", stage, does) : std::string();
}

}  // namespace

std::size_t TrainingPlan::needs_most_memory() const {
  const auto total = [](const StagePlan& stage) { return stage.memory.total(); };
  return static_cast<std::size_t>(std::ranges::max_element(stages, {}, total) - stages.begin());
}

std::size_t TrainingPlan::sends_most() const {
  return static_cast<std::size_t>(std::ranges::max_element(stages, {}, &StagePlan::all_sent) - stages.begin());
}

TrainingPlan plan_training(const TrainingOptions& options) { return plan_training(options, options.check()); }

TrainingPlan plan_training(const TrainingOptions& options, const Schedule& schedule) {
  TrainingPlan plan;
  plan.ranks = options.mesh.ranks() * options.diloco.replicas;
  plan.parameters = parameters_of(options.model);
  const PowerSGDOptions& powersgd = options.sharding.powersgd;
  if (kind_of(options.optimizer).momentum_exchange) plan.steps = "a step after the freeze of the variance";
  if (powersgd.any() && powersgd.start > 0) plan.steps = fmt::format("a step after the first {}", powersgd.start);
  for (int stage = 0; stage < schedule.stages; ++stage) plan.stages.push_back(plan_stage(options, schedule, stage));
  return plan;
}

std::string memory_table(const TrainingPlan& plan) {
  const std::size_t stage = plan.needs_most_memory();
  const TrainingMemory& memory = plan.stages[stage].memory;
  std::string text = fmt::format("Memory of a rank{} by formula:", which(plan, stage, "needs"));
  for (const auto& [kind, member] : kinds) {
    text += fmt::format("{} {} {}", kind == MemoryKind::values ? "" : ",", name(kind), amount(memory.*member));
  }
  return text + fmt::format("; model state {}, in all {}", amount(memory.values + memory.gradients + memory.optimizer),
                            amount(memory.total()));
}

std::string memory_table_with_measured(const TrainingMemory& plan) {
  std::string text = fmt::format("{:<26}{:>12}{:>14}", "Memory of rank 0", "by formula", "measured");
  std::int64_t sum = 0;
  for (const auto& [kind, member] : kinds) {
    const std::int64_t held = measured(kind);
    sum += held;
    text += fmt::format("\n  {:<24}{:>12}{:>14}", name(kind), amount(plan.*member), amount(held));
  }
  return text + fmt::format("\n  {:<24}{:>12}{:>14}\n  {:<24}{:>12}{:>14}", "in all", amount(plan.total()), amount(sum),
                            "taken from the system", "", amount(static_cast<std::int64_t>(reserved_memory())));
}

std::string traffic_table(const TrainingPlan& plan) {
  const std::size_t stage = plan.sends_most();
  const std::map<std::string, std::int64_t>& sent = plan.stages[stage].sent;
  std::string text = fmt::format("Sent by a rank{} in {} by formula:", which(plan, stage, "sends"), plan.steps);
  for (const auto& [group, bytes] : sent) text += fmt::format(" {} {};", group, amount(bytes));
  return sent.empty() ? text + " nothing" : text.substr(0, text.size() - 1);
}

void write_plan(const TrainingPlan& plan, const std::string& file) {
  nlohmann::ordered_json memory;
  const std::size_t stage = plan.needs_most_memory(), sending = plan.sends_most();
  for (const auto& [kind, member] : kinds) memory[name(kind)] = plan.stages[stage].memory.*member;
  const nlohmann::ordered_json all{{"ranks", plan.ranks},      {"parameters", plan.parameters},
                                   {"stage", stage},           {"memory", memory},
                                   {"sending_stage", sending}, {"sent", plan.stages[sending].sent}};
  write_output_file(file, all.dump(1) + '\n', "--json " + file);
}

}  // namespace apps
