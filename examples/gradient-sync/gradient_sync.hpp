#pragma once
#include <stretto/stretto.hpp>
#include <vector>

// Averages gradients over the ranks while backward is still computing others. Backward writes gradient i to gradient(i) and
// then calls ready(i); gradients are counted in the order in which backward completes them, the same on all ranks.
class GradientSync {
 public:
  GradientSync(stretto::Communicator ranks, const std::vector<std::int64_t>& sizes, std::int64_t bucket_size)
      : ranks_(std::move(ranks)), stream_("gradients") {
    std::int64_t total = 0;
    for (const std::int64_t size : sizes) {
      if (buckets_.empty() || total - buckets_.back().begin >= bucket_size) buckets_.push_back({total});
      begins_.push_back(total);
      bucket_of_.push_back(buckets_.size() - 1);
      buckets_.back().missing = ++buckets_.back().gradients;
      buckets_.back().end = total += size;
    }
    memory_ = stretto::allocate(static_cast<std::size_t>(total) * sizeof(float));  // the ranks of a host reach it in place
  }
  float* gradient(std::size_t i) const { return reinterpret_cast<float*>(memory_.get()) + begins_[i]; }
  void ready(std::size_t i) {
    --buckets_[bucket_of_[i]].missing;
    for (; next_ < buckets_.size() && buckets_[next_].missing == 0; ++next_) {  // in the same order on all ranks
      Bucket& bucket = buckets_[next_];
      float* const data = reinterpret_cast<float*>(memory_.get()) + bucket.begin;
      bucket.average = ranks_.all_reduce(data, data, bucket.end - bucket.begin, stretto::DType::f32,
                                         stretto::ReduceOp::avg, stream_);
    }
  }
  void finish() {  // all averages are there when it returns
    for (Bucket& bucket : buckets_) {
      bucket.average.wait();
      bucket.missing = bucket.gradients;
    }
    next_ = 0;
  }

 private:
  struct Bucket {
    std::int64_t begin, end = 0;  // elements
    int gradients = 0, missing = 0;
    stretto::Work average = {};
  };
  stretto::Communicator ranks_;
  stretto::Stream stream_;
  std::shared_ptr<std::byte> memory_;
  std::vector<std::int64_t> begins_;
  std::vector<std::size_t> bucket_of_;  // by gradient
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;  // the first whose average has not begun
};
