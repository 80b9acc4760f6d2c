#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "stretto/planning/layout_search.hpp"

namespace stretto {
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
  if (layout.tiles > 1) text += fmt::format(", {} tiles", layout.tiles);
  text += fmt::format(", ZeRO {}, recomputes {}", static_cast<int>(layout.sharding.zero), name(layout.recompute.level));
  const ShardedParameters::Options::Offload& files = layout.sharding.offload;
  std::vector<std::string> in_files;
  if (!files.optimizer.directory.empty()) in_files.emplace_back("optimizer");
  if (!files.gradients.directory.empty()) in_files.emplace_back("gradients");
  if (!files.values.directory.empty()) in_files.emplace_back("values");
  return in_files.empty() ? text : text + fmt::format(", {} in files", fmt::join(in_files, " and "));
}

}  // namespace stretto
