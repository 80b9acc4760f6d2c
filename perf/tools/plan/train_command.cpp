#include "plan/train_command.hpp"

#include <fmt/format.h>

#include "apps/train/options/layout_flags.hpp"
#include "plan/model_text.hpp"
#include "stretto/models/families.hpp"

namespace plan_tool {
namespace {

std::string model_flags(const std::string& text, const DecoderShape& model) {
  const std::string file = config_file_of(text);
  if (!file.empty()) return fmt::format(" --model {} --seq-length {}", file, model.sequence);
  const DecoderShape shape = model.filled();
  std::string flags = fmt::format(" --model {} --num-layers {} --hidden-size {} --num-attention-heads {}",
                                  family_name(model), shape.layers, shape.hidden, shape.heads);
  if (family_name(model) == "llama") {
    flags += fmt::format(" --num-key-value-heads {} --head-dim {} --ffn-hidden-size {}{}", shape.kv_heads, shape.head_size,
                         shape.mlp_width, shape.tied ? "" : " --untied");
  }
  return flags + fmt::format(" --seq-length {} --vocab-size {}", shape.sequence, shape.vocabulary);
}

}  // namespace

std::string train_flags(const LayoutLine& line, const TrainingOptions& layout) {
  std::string flags =
      apps::layout_flags(layout) + fmt::format(" --global-batch-size {} --dtype {}", layout.global_batch, line.dtype);
  if (layout.sharding.gradient_dtype)
    flags += fmt::format(" --grad-dtype {}", training_name(*layout.sharding.gradient_dtype));
  if (layout.mask.sparse()) flags += " --attention " + to_text(layout.mask);
  return flags + model_flags(line.model, layout.model);
}

}  // namespace plan_tool
