#include "stretto/layers/training_layout.hpp"

#include <numeric>

#include "core/fail.hpp"
#include "layers/layout/planned_stage.hpp"

namespace stretto {

namespace {

constexpr std::int64_t most_layers = 100000;
constexpr double most_parameters = 1e15, most_tokens = 1e15;

}  // namespace

Schedule TrainingLayout::check() const {
  check_sizes();
  Schedule schedule = stages.schedule(mesh[Axis::pipeline], microbatches());
  cut(schedule, 0);  // throws if layers and stages do not fit
  return schedule;
}

void TrainingLayout::check_sizes() const {
  require(
      model.layers >= 1 && model.hidden >= 1 && model.heads >= 1 && model.sequence >= 1 && model.vocabulary >= 1,
      "A model of {} layers, hidden size {}, {} heads, sequence length {} and vocabulary {} is impossible; all must be at "
      "least 1.",
      model.layers, model.hidden, model.heads, model.sequence, model.vocabulary);
  // Beyond these no product of sizes fits 64 bits, and their parameters' records alone fill a memory.
  const auto hidden = static_cast<double>(model.hidden), layers = static_cast<double>(model.layers);
  const double parameters = static_cast<double>(model.vocabulary) * hidden + static_cast<double>(model.sequence) * hidden +
                            12 * layers * hidden * hidden;
  require(
      model.layers <= most_layers && parameters <= most_parameters,
      "A model of {} layers, hidden size {}, sequence length {} and vocabulary {} has {:.2g} parameters; at most {} layers "
      "and {:.0g} parameters can be trained.",
      model.layers, model.hidden, model.sequence, model.vocabulary, parameters, most_layers, most_parameters);
  require(static_cast<double>(global_batch) * static_cast<double>(model.sequence) <= most_tokens,
          "A global batch of {} sequences of {} tokens has more than {:.0g} tokens; give less.", global_batch,
          model.sequence, most_tokens);
  require(micro_batch >= 1 && global_batch >= 1 && global_batch % micro_batch == 0 &&
              global_batch / micro_batch % mesh[Axis::data] == 0,
          "A global batch of {} does not divide into microbatches of {} on {} data-parallel ranks.", global_batch,
          micro_batch, mesh[Axis::data]);
  model.block().check_heads(mesh[Axis::tensor], mesh[Axis::ulysses]);
  division().check(model.sequence);
  sharding.check(mesh);
  require(!divides_rows || mesh[Axis::tensor] > 1,
          "Sequence parallelism divides rows over the ranks of a tensor-parallel group, and this group has 1; give it more "
          "ranks, or leave rows whole.");
  require(!keeps_gathered || divides_rows,
          "Gathered rows can be kept only where sequence parallelism divides rows; divide them, or keep nothing.");
  recompute.check(tensor_parallel());
}

TensorParallel TrainingLayout::tensor_parallel() const {
  return {.planned_ranks = mesh[Axis::tensor], .divides_rows = divides_rows, .keeps_gathered = keeps_gathered};
}

std::int64_t StagePlan::all_sent() const {
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& group) { return sum + group.second; });
}

StagePlan plan_stage(const TrainingLayout& layout, const Schedule& schedule, int stage) {
  const PlannedStage planned(layout, schedule, stage);
  const MeshShape& mesh = layout.mesh;
  Parameters parameters;
  add_records(parameters, layout.model, layout.tensor_parallel(), planned.cut());
  StagePlan plan;
  plan.memory = state_memory(parameters, mesh, layout.sharding);
  plan.memory.activations = planned.activation_bytes();
  plan.memory.buffers += planned.attention_buffers();
  if (layout.saves_in_background) plan.memory.buffers += snapshot_memory(parameters, mesh, layout.sharding);
  const int passes = layout.recompute.level == Recompute::full ? 3 : 2;
  plan.sent = state_traffic(parameters, mesh, layout.sharding, layout.microbatches(), passes);
  if (mesh[Axis::tensor] > 1) plan.sent[group_name(Axis::tensor)] += planned.tensor_parallel_bytes();
  if (mesh[Axis::ring] > 1) plan.sent[group_name(Axis::ring)] += planned.ring_bytes();
  if (mesh[Axis::ulysses] > 1) plan.sent[group_name(Axis::ulysses)] += planned.ulysses_bytes();
  if (mesh[Axis::pipeline] > 1) plan.sent[group_name(Axis::pipeline)] += planned.message_bytes();
  return plan;
}

}  // namespace stretto
