#include "apps/train/options/layout_flags.hpp"

#include <fmt/format.h>

namespace apps {

using namespace stretto;

std::string layout_flags(const TrainingOptions& layout) {
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
  if (layout.tiles > 1) flags += fmt::format(" --tiles {}", layout.tiles);
  if (layout.sharding.delay > 0) flags += fmt::format(" --delay {}", layout.sharding.delay);
  if (layout.delay_from > 0) flags += fmt::format(" --delay-from {}", layout.delay_from);
  const ShardedParameters::Options::Offload& files = layout.sharding.offload;
  const auto add = [&](const char* what, const ShardedParameters::Options::InFile& its) {
    if (its.directory.empty()) return;
    flags += fmt::format(" --offload {}={}", what, its.directory);
    if (its.ratio > 0) flags += fmt::format(",ratio={}", its.ratio);
  };
  add("optimizer", files.optimizer);
  add("gradients", files.gradients);
  add("values", files.values);
  if (!layout.recompute.directory.empty()) flags += fmt::format(" --offload activations={}", layout.recompute.directory);
  if (files.speculates) flags += " --speculate";
  return flags + fmt::format(" --zero {} --recompute {}{} --micro-batch-size {}", static_cast<int>(layout.sharding.zero),
                             name(layout.recompute.level), layout.recompute.partition ? " --partition-activations" : "",
                             layout.micro_batch);
}

}  // namespace apps
