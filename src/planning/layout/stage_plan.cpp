#include "stretto/planning/stage_plan.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/fail.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "planning/layout/matrix_plan.hpp"
#include "planning/layout/planned_stage.hpp"
#include "stretto/kernels.hpp"
#include "stretto/models/decoder.hpp"

namespace stretto {

namespace {

// While a fragment is exchanged, a rank holds its vector and the buffers of the all-reduce: the contributions to this rank's
// part of the sum, or in a format the records that go out, come in and hold the part's sum. At ZeRO stage 0 it holds a
// unit's master weights and this rank's share of them, while these go to the ranks of the replica. A format adds the errors
// of all vectors and of this rank's part of their sums.
void add_outer_steps(const Parameters& parameters, const TrainingOptions& options, StagePlan& plan) {
  const DiLoCoOptions& outer = options.diloco;
  const auto wide = static_cast<std::int64_t>(size_of(kernels::accumulator(options.sharding.dtype)));
  const bool plain = outer.format == QuantizedFormat::none;
  std::int64_t most = 0, sent = 0;
  const auto share_of = [&](std::int64_t elements) { return (elements + outer.replicas - 1) / outer.replicas; };
  for (const auto& [all, copied] : outer_elements(parameters, options.mesh, options.sharding, outer.fragments)) {
    const std::int64_t quantized = plain ? 0 : all - copied;
    const std::int64_t packed = quantized == 0 ? 0 : packed_bytes(outer.format, share_of(quantized));
    const std::int64_t rest = all - quantized;
    most = std::max(most, wide * all + std::max(wide * rest, (2 * outer.replicas + 1) * packed));
    sent += wide * (rest + (outer.replicas - 2) * share_of(rest)) + 2 * (outer.replicas - 1) * packed;
    plan.memory.buffers += static_cast<std::int64_t>(sizeof(float)) * (quantized + share_of(quantized));
  }
  for (const UnitMembers& unit : cut_units(parameters, options.mesh, options.sharding)) {
    const int ranks = options.mesh.gradient_ranks(unit.axes);
    if (!unit.trainable || ranks == 1 || unit.stage(options.sharding) != ZeroStage::none) continue;
    most = std::max(most, wide * ((unit.elements + ranks - 1) / ranks) * (ranks + 1));
  }
  plan.memory.buffers += most;
  plan.sent["diloco"] += sent / outer.sync_every;
}

}  // namespace

std::int64_t StagePlan::all_sent() const {
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& group) { return sum + group.second; });
}

StagePlan plan_stage(const TrainingOptions& options, const Schedule& schedule, int stage) {
  require(
      !options.servers.any(),
      "A plan counts what each rank holds and sends, and leaves out what {} servers do; plan a training without servers.",
      options.servers.count);
  const PlannedStage planned(options, schedule, stage);
  const MeshShape& mesh = options.mesh;
  Parameters parameters;
  const Decoder records(parameters, options.model, options.tensor_parallel(), options.recompute, planned.cut(),
                        std::make_shared<LocalAttention>(), options.adapters);
  StagePlan plan;
  const ShardedParameters::Options sharding = options.sharding_of(schedule, stage);
  plan.memory = state_memory(parameters, mesh, sharding, options.optimizer_kind(schedule));
  plan.memory.activations = planned.activation_bytes();
  plan.memory.buffers += planned.attention_buffers();
  if (options.saves_in_background) {
    plan.memory.buffers +=
        snapshot_memory(parameters, mesh, sharding, options.optimizer_kind(schedule), options.saves_trained_only);
  }
  const int passes = options.recompute.level == Recompute::full ? 3 : 2;
  const OptimizerKind kind = kind_of(options.optimizer);
  plan.sent = kind.sums_gradients() ? state_traffic(parameters, mesh, sharding, options.microbatches(), passes)
                                    : momentum_traffic(parameters, mesh, sharding, kind);
  if (kind.whole_matrices && mesh.ranks_over(token_axes | Axis::tensor) > 1) {
    plan.sent[group_name(mesh.divided(token_axes | Axis::tensor))] += matrix_traffic(parameters, mesh, sharding);
  }
  if (mesh[Axis::tensor] > 1) plan.sent[group_name(Axis::tensor)] += planned.tensor_parallel_bytes();
  if (mesh[Axis::ring] > 1) plan.sent[group_name(Axis::ring)] += planned.ring_bytes();
  if (mesh[Axis::ulysses] > 1) plan.sent[group_name(Axis::ulysses)] += planned.ulysses_bytes();
  if (mesh[Axis::pipeline] > 1) plan.sent[group_name(Axis::pipeline)] += planned.message_bytes();
  if (options.diloco.any()) add_outer_steps(parameters, options, plan);
  return plan;
}

}  // namespace stretto
