#include "stretto/overlap/postponed_gather.hpp"

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "device/memory/range.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

constexpr auto none = static_cast<std::size_t>(-1);

}  // namespace

PostponedGather::PostponedGather(const GradientBuckets& buckets, const std::vector<Tensor>& tensors, std::string tag)
    : group_(buckets.group()), stream_(buckets.stream()), tag_(std::move(tag)), part_of_(tensors.size(), none) {
  for (std::size_t b = buckets.bucket_count(); b-- > 0;) {
    if (!buckets.is_postponed(b)) continue;
    std::vector<Tensor> members;
    for (const std::size_t member : buckets.members(b)) {
      require(member < tensors.size(), "Gradient {} has no tensor among the {} to be gathered.", member, tensors.size());
      members.push_back(tensors[member]);
      part_of_[member] = parts_.size();
    }
    parts_.push_back({buckets.members(b), FlatTensors(std::move(members))});
  }
}

void PostponedGather::start(const Update& update) {
  const ProfilerRange range([&] { return fmt::format("{} shares are gathered: {}", parts_.size(), tag_); });
  wait();
  for (Part& part : parts_) {
    const Tensor& flat = part.memory.flat();
    if (flat.size() == 0) continue;
    const std::int64_t first = part_begin(flat.size(), group_.size(), group_.rank());
    const std::int64_t count = part_size(flat.size(), group_.size(), group_.rank());
    if (update) {
      std::vector<ElementRange> share = part.memory.ranges(first, count);
      for (ElementRange& elements : share) elements.tensor = part.members[elements.tensor];
      update(share);
    }
    part.memory.pack(first, count);
    Call call{Collective::all_gather, flat.view(first, {count}).raw(), flat.raw(), 0, flat.dtype()};
    call.counts = part_sizes(flat.size(), group_.size());
    call.keep_alive = flat;
    part.arriving = group_.start(call, stream_, {.tag = tag_});
    part.under_way = true;
  }
}

void PostponedGather::wait_for(std::size_t tensor) {
  require(tensor < part_of_.size(), "There is no tensor {} among the {} that are gathered.", tensor, part_of_.size());
  if (part_of_[tensor] != none) wait_for(parts_[part_of_[tensor]]);
}

void PostponedGather::wait() {
  for (Part& part : parts_) wait_for(part);
}

void PostponedGather::wait_for(Part& part) const {
  if (!part.under_way) return;
  computation().wait(part.arriving);
  part.memory.unpack(0, part.memory.flat().size());
  part.under_way = false;
}

}  // namespace stretto
