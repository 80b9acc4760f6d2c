#include "stretto/overlap/gradient_buckets.hpp"

#include <algorithm>

#include "core/fail.hpp"

namespace stretto {

GradientBuckets::GradientBuckets(std::vector<Tensor> gradients, Communicator group, Stream stream, const Options& options)
    : group_(std::move(group)), stream_(std::move(stream)), options_(options), is_ready_(gradients.size(), false) {
  for (std::size_t first = 0; first < gradients.size();) {
    const Tensor& head = gradients[first];
    std::int64_t elements = 0;
    std::size_t last = first;
    while (last < gradients.size() &&
           (last == first || static_cast<std::size_t>(elements) * size_of(head.dtype()) < options.bucket_bytes)) {
      const auto* const expected =
          static_cast<const std::byte*>(head.raw()) + static_cast<std::size_t>(elements) * size_of(head.dtype());
      require(gradients[last].raw() == expected && gradients[last].dtype() == head.dtype(),
              "Gradient {} does not lie behind gradient {} in memory; buckets are made of neighbours of one type.", last,
              last - 1);
      elements += gradients[last].size();
      bucket_of_.push_back(buckets_.size());
      ++last;
    }
    buckets_.push_back({head.spanning(elements), last - first, last - first, Work()});
    first = last;
  }
}

void GradientBuckets::ready(std::size_t i) {
  require(i < is_ready_.size() && !is_ready_[i], "Gradient {} of {} is ready twice in one step, or does not exist.", i,
          is_ready_.size());
  is_ready_[i] = true;
  Bucket& bucket = buckets_[bucket_of_[i]];
  if (--bucket.waiting == 0 && options_.overlap) reduce(bucket, stream_);
}

void GradientBuckets::finish() {
  const auto missing = std::find(is_ready_.begin(), is_ready_.end(), false);
  require(missing == is_ready_.end(), "Gradient {} of {} was not ready when the step ended.", missing - is_ready_.begin(),
          is_ready_.size());
  for (Bucket& bucket : buckets_) {
    if (!options_.overlap) reduce(bucket, Stream::inline_());
    bucket.work.wait();
    bucket.waiting = bucket.members;
  }
  std::fill(is_ready_.begin(), is_ready_.end(), false);
}

void GradientBuckets::reduce(Bucket& bucket, const Stream& stream) {
  if (group_.size() == 1) return;
  bucket.work = group_.all_reduce(bucket.memory, ReduceOp::sum, stream, {.tag = "gradients"});
}

}  // namespace stretto
