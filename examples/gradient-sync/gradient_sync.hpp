#pragma once
#include <numeric>
#include <stretto/stretto.hpp>
#include <vector>

// Averages gradients over the ranks while backward is still computing others. Gradients are numbered in the order in which
// backward completes them, the same on all ranks. They lie one after the other in memory, and are averaged in buckets.
class GradientSync {
 public:
  GradientSync(stretto::Communicator ranks, const std::vector<std::int64_t>& sizes, std::int64_t bucket_size)
      : ranks_(std::move(ranks)), stream_("gradients"), bucket_size_(bucket_size), begins_(sizes.size() + 1) {
    std::inclusive_scan(sizes.begin(), sizes.end(), begins_.begin() + 1);
    memory_ = stretto::allocate(begins_.back() * sizeof(float));  // the ranks of a host access it directly
  }
  float* gradient(std::size_t i) const { return reinterpret_cast<float*>(memory_.get()) + begins_[i]; }

  void ready() {  // called when the next gradient is complete
    const std::int64_t end = begins_[++ready_];
    if (end - sent_ < bucket_size_ && ready_ + 1 < begins_.size()) return;
    float* const data = gradient(0) + sent_;
    averages_.push_back(ranks_.all_reduce(data, data, end - sent_, stretto::DType::f32, stretto::ReduceOp::avg, stream_));
    sent_ = end;
  }
  void finish() {  // blocks until all gradients are averages
    for (const stretto::Work& average : averages_) average.wait();
    averages_.clear();
    ready_ = 0;
    sent_ = 0;
  }

 private:
  stretto::Communicator ranks_;
  stretto::Stream stream_;
  std::int64_t bucket_size_;
  std::vector<std::int64_t> begins_;  // of each gradient, and the end
  std::shared_ptr<std::byte> memory_;
  std::vector<stretto::Work> averages_;  // in flight
  std::size_t ready_ = 0;                // number of complete gradients
  std::int64_t sent_ = 0;                // number of elements in started averages
};
