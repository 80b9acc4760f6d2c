#include "stretto/planning/stage_plan.hpp"

#include <numeric>

#include "planning/layout/planned_stage.hpp"
#include "stretto/models/decoder.hpp"

namespace stretto {

std::int64_t StagePlan::all_sent() const {
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& group) { return sum + group.second; });
}

StagePlan plan_stage(const TrainingOptions& options, const Schedule& schedule, int stage) {
  const PlannedStage planned(options, schedule, stage);
  const MeshShape& mesh = options.mesh;
  Parameters parameters;
  const Decoder records(parameters, options.model, options.tensor_parallel(), options.recompute, planned.cut(),
                        std::make_shared<LocalAttention>(), options.adapters);
  StagePlan plan;
  ShardedParameters::Options sharding = options.sharding;
  sharding.versions = versions_of(schedule, stage);
  plan.memory = state_memory(parameters, mesh, sharding, kind_of(options.optimizer));
  plan.memory.activations = planned.activation_bytes();
  plan.memory.buffers += planned.attention_buffers();
  if (options.saves_in_background)
    plan.memory.buffers += snapshot_memory(parameters, mesh, options.sharding, kind_of(options.optimizer));
  const int passes = options.recompute.level == Recompute::full ? 3 : 2;
  plan.sent = state_traffic(parameters, mesh, options.sharding, options.microbatches(), passes);
  if (mesh[Axis::tensor] > 1) plan.sent[group_name(Axis::tensor)] += planned.tensor_parallel_bytes();
  if (mesh[Axis::ring] > 1) plan.sent[group_name(Axis::ring)] += planned.ring_bytes();
  if (mesh[Axis::ulysses] > 1) plan.sent[group_name(Axis::ulysses)] += planned.ulysses_bytes();
  if (mesh[Axis::pipeline] > 1) plan.sent[group_name(Axis::pipeline)] += planned.message_bytes();
  return plan;
}

}  // namespace stretto
