#include "stretto/overlap/gradient_buckets.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "device/memory/range.hpp"
#include "overlap/bucket_cut.hpp"
#include "stretto/device.hpp"

namespace stretto {

GradientBuckets::GradientBuckets(std::vector<Tensor> gradients, Communicator group, Stream stream, const Options& options)
    : gradients_(std::move(gradients)),
      group_(std::move(group)),
      stream_(options.overlap ? std::move(stream) : computation()),
      options_(options),
      is_ready_(gradients_.size(), false) {
  std::vector<Place> as_given;
  for (std::size_t i = 0; i < gradients_.size(); ++i) as_given.push_back({i, false});
  cut(as_given);
}

void GradientBuckets::cut(const std::vector<Place>& order) {
  std::vector<GradientSize> sizes;
  for (const Place& place : order) {
    const Tensor& gradient = gradients_[place.gradient];
    sizes.push_back({gradient.bytes(), gradient.dtype(), place.ends_bucket});
  }
  buckets_.clear();
  bucket_of_.assign(gradients_.size(), 0);
  std::size_t begin = 0;
  for (const std::size_t end :
       cut_into_buckets(sizes, options_.bucket_bytes, std::min(options_.first_bucket_bytes, options_.bucket_bytes))) {
    std::vector<std::size_t> members;
    for (std::size_t i = begin; i < end; ++i) {
      members.push_back(order[i].gradient);
      bucket_of_[order[i].gradient] = buckets_.size();
    }
    std::sort(members.begin(), members.end());
    std::vector<Tensor> tensors;
    tensors.reserve(members.size());
    for (const std::size_t member : members) tensors.push_back(gradients_[member]);
    const std::size_t count = members.size();
    buckets_.push_back({std::move(members), FlatTensors(std::move(tensors)), count});
    begin = end;
  }
  postponed_.assign(buckets_.size(), false);
}

void GradientBuckets::ready(std::size_t i) {
  require(i < is_ready_.size() && !is_ready_[i], "Gradient {} of {} is ready twice in one step, or does not exist.", i,
          is_ready_.size());
  is_ready_[i] = true;
  if (!knows_order_) came_.push_back({i, false});
  Bucket& bucket = buckets_[bucket_of_[i]];
  if (--bucket.waiting > 0) return;
  bucket.ready = computation().enqueue([] {});
  while (options_.overlap && started_ < buckets_.size() && buckets_[started_].waiting == 0) start(started_++);
}

void GradientBuckets::flush() {
  if (!came_.empty()) came_.back().ends_bucket = true;
}

void GradientBuckets::finish() {
  const auto missing = std::find(is_ready_.begin(), is_ready_.end(), false);
  require(missing == is_ready_.end(), "Gradient {} of {} was not ready when the step ended.", missing - is_ready_.begin(),
          is_ready_.size());
  const ProfilerRange range([] { return "sums of gradients are waited for"; });
  while (started_ < buckets_.size()) start(started_++);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    Bucket& bucket = buckets_[i];
    computation().wait(bucket.reduced);
    computation().wait(bucket.gathered);
    if (group_.size() > 1) unpack(i);
    bucket.waiting = bucket.members.size();
  }
  std::fill(is_ready_.begin(), is_ready_.end(), false);
  started_ = 0;
  if (!knows_order_) learn();
}

// All ranks take rank 0's order: ranks that cut buckets differently would sum different gradients.
void GradientBuckets::learn() {
  std::vector<std::int64_t> told;
  for (const Place& place : came_)
    told.push_back(static_cast<std::int64_t>(place.gradient) * 2 + (place.ends_bucket ? 1 : 0));
  if (group_.size() > 1 && !told.empty()) {
    group_.broadcast(told.data(), told.data(), static_cast<std::int64_t>(told.size()), DType::i64, 0, Stream::inline_(),
                     {.tag = "order of gradients"});
  }
  std::vector<Place> order;
  bool is_as_given = true;
  for (const std::int64_t each : told) {
    order.push_back({static_cast<std::size_t>(each / 2), each % 2 == 1});
    is_as_given = is_as_given && order.back() == Place{order.size() - 1, false};
  }
  came_.clear();
  knows_order_ = true;
  if (!is_as_given) cut(order);
}

void GradientBuckets::start(std::size_t b) {
  Bucket& bucket = buckets_[b];
  const Tensor& flat = bucket.memory.flat();
  if (group_.size() == 1 || flat.size() == 0) return;
  const ProfilerRange range([&] { return fmt::format("bucket {} of gradients", b); });
  bucket.memory.pack(0, flat.size());
  const OperationOptions named{.tag = "gradients"};
  if (!options_.scatter) {
    bucket.reduced = group_.all_reduce(flat, ReduceOp::sum, stream_, named);
    return;
  }
  void* const own = flat.view(share(b).first, {share(b).count}).raw();
  Call call{Collective::reduce_scatter, flat.raw(), own, 0, flat.dtype()};
  call.counts = part_sizes(flat.size(), group_.size());
  call.keep_alive = flat;
  bucket.reduced = group_.start(call, stream_, named);
  bucket.gathered = Work();
  if (is_postponed(b)) return;
  call.collective = Collective::all_gather;
  call.input = own;
  call.output = flat.raw();
  bucket.gathered = group_.start(call, stream_, named);
}

void GradientBuckets::unpack(std::size_t b) const {
  const FlatTensors& memory = buckets_[b].memory;
  if (is_postponed(b)) {
    memory.unpack(share(b).first, share(b).count);
  } else {
    memory.unpack(0, memory.flat().size());
  }
}

void GradientBuckets::set_postponed(std::vector<bool> buckets) {
  require(options_.scatter && knows_order_, "Buckets can be postponed with scatter, and after the first step only.");
  require(buckets.size() == buckets_.size(), "{} flags do not say which of {} buckets are postponed; give one for each.",
          buckets.size(), buckets_.size());
  postponed_ = std::move(buckets);
}

ElementRange GradientBuckets::share(std::size_t bucket) const {
  const std::int64_t elements = buckets_[bucket].memory.flat().size();
  return {0, part_begin(elements, group_.size(), group_.rank()), part_size(elements, group_.size(), group_.rank())};
}

void GradientBuckets::append_ranges(std::size_t bucket, const ElementRange& of, std::vector<ElementRange>& to) const {
  for (ElementRange range : buckets_[bucket].memory.ranges(of.first, of.count)) {
    range.tensor = buckets_[bucket].members[range.tensor];
    to.push_back(range);
  }
}

std::vector<ElementRange> GradientBuckets::complete() const {
  std::vector<ElementRange> result;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (!is_postponed(b)) append_ranges(b, {0, 0, buckets_[b].memory.flat().size()}, result);
  }
  return result;
}

std::vector<ElementRange> GradientBuckets::shares() const {
  std::vector<ElementRange> result;
  for (std::size_t b = 0; b < buckets_.size(); ++b) append_ranges(b, share(b), result);
  return result;
}

GradientBuckets::Times GradientBuckets::times(std::size_t bucket) const {
  const Bucket& of = buckets_[bucket];
  for (const Work& work : {of.ready, of.reduced, of.gathered}) work.wait();
  const auto seconds = [](const Work& work) { return work.times().done - work.times().started; };
  return {of.ready.times().done, seconds(of.reduced), seconds(of.gathered)};
}

}  // namespace stretto
