#include <fmt/format.h>

#include <algorithm>

#include "stretto/layers/attention.hpp"
#include "stretto/models/families.hpp"
#include "stretto/planning/layout_search.hpp"

namespace stretto {
namespace {

// The flags of options that all layouts of a search share, where these differ from the trainer's defaults.
std::string state_flags(const ShardedParameters::Options& options) {
  std::string flags;
  if (options.gradient_dtype) flags += fmt::format(" --grad-dtype {}", training_name(*options.gradient_dtype));
  if (!options.overlap) flags += " --no-overlap";
  if (options.zero >= ZeroStage::gradients && options.prefetch != 1)
    flags += fmt::format(" --prefetch {}", options.prefetch);
  if (options.hpz_size > 1) flags += fmt::format(" --hpz-size {}", options.hpz_size);
  if (options.qwz != QuantizedFormat::none) flags += fmt::format(" --qwz {}", name(options.qwz));
  if (options.qgz != QuantizedFormat::none) flags += fmt::format(" --qgz {}", name(options.qgz));
  if (options.qgz_error_feedback) flags += " --qgz-error-feedback";
  if (options.qgz_rounding == Rounding::stochastic) flags += " --qgz-stochastic";
  return flags;
}

std::string model_flags(const DecoderShape& model) {
  std::string flags =
      fmt::format(" --num-layers {} --hidden-size {} --num-attention-heads {} --seq-length {} --vocab-size {}", model.layers,
                  model.hidden, model.heads, model.sequence, model.vocabulary);
  if (model.positions == DecoderShape::Positions::learned) return flags;
  const DecoderShape shape = model.filled();
  flags += fmt::format(" --model {} --num-key-value-heads {} --head-dim {} --ffn-hidden-size {}",
                       family_name(model) == "llama" && shape.rope_scaling == RotaryScaling() ? "llama" : "CONFIG.json",
                       shape.kv_heads, shape.head_size, shape.mlp_width);
  if (shape.rope_theta != DecoderShape().rope_theta) flags += fmt::format(" --rope-theta {}", shape.rope_theta);
  return model.tied ? flags : flags + " --untied";
}

}  // namespace

std::string refusal_text(const LayoutSpace& space, const LayoutSearch& search) {
  const std::vector<LayoutSearch::Refusal>& refused = search.refused;
  if (refused.empty()) return fmt::format("No layout of {} ranks is as the flags fix it; leave some out.", space.ranks);
  if (refused.size() == 1) return refused.front().sentence;
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(refused.size(), 3); ++i) {
    text += fmt::format("{}{} refused, such as: {}", i == 0 ? "" : "\n", refused[i].count, refused[i].sentence);
  }
  return text;
}

std::string to_string(const TrainingOptions& layout) {
  const MeshShape& mesh = layout.mesh;
  std::string text =
      fmt::format("tp {}{} x pp {}", mesh[Axis::tensor], layout.divides_rows ? " (sp)" : "", mesh[Axis::pipeline]);
  if (mesh[Axis::ring] > 1) text += fmt::format(" x cp {}", mesh[Axis::ring]);
  if (mesh[Axis::ulysses] > 1) text += fmt::format(" x ulysses {}", mesh[Axis::ulysses]);
  text += fmt::format(" x dp {}, micro-batch {}", mesh[Axis::data], layout.micro_batch);
  if (mesh[Axis::pipeline] > 1) {
    text += fmt::format(", {}", layout.stages.schedule_name);
    if (layout.stages.virtual_stages > 1) text += fmt::format(" of {}", layout.stages.virtual_stages);
  }
  return text +
         fmt::format(", ZeRO {}, recomputes {}", static_cast<int>(layout.sharding.zero), name(layout.recompute.level));
}

std::string train_flags(const TrainingOptions& layout) {
  const MeshShape& mesh = layout.mesh;
  std::string flags = fmt::format("--tp {} --pp {} --dp {}", mesh[Axis::tensor], mesh[Axis::pipeline], mesh[Axis::data]);
  if (layout.divides_rows) flags += " --sp";
  if (layout.keeps_gathered) flags += " --sp-keep-gathered";
  if (mesh[Axis::ring] > 1) flags += fmt::format(" --cp {} --cp-layout {}", mesh[Axis::ring], name(layout.sequence_layout));
  if (mesh[Axis::ulysses] > 1) flags += fmt::format(" --ulysses {}", mesh[Axis::ulysses]);
  if (mesh[Axis::pipeline] > 1) {
    flags += fmt::format(" --schedule {}", layout.stages.schedule_name);
    if (layout.stages.virtual_stages > 1) flags += fmt::format(" --virtual-stages {}", layout.stages.virtual_stages);
  }
  flags += fmt::format(" --zero {} --recompute {}{} --micro-batch-size {} --global-batch-size {} --dtype {}",
                       static_cast<int>(layout.sharding.zero), name(layout.recompute.level),
                       layout.recompute.partition ? " --partition-activations" : "", layout.micro_batch, layout.global_batch,
                       training_name(layout.sharding.dtype));
  if (layout.mask.sparse()) flags += " --attention " + to_text(layout.mask);
  flags += state_flags(layout.sharding);
  if (const auto* const sgd = std::get_if<SGD::Options>(&layout.optimizer)) {
    flags += fmt::format(" --optimizer sgd --momentum {}", sgd->momentum);
  }
  return flags + model_flags(layout.model);
}

}  // namespace stretto
