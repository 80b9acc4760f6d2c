#pragma once
#include <stretto/stretto.hpp>
#include <vector>

// Averages gradients over the ranks while backward is still computing others. The gradients are tensors in the order in
// which backward completes them, the same on all ranks: Tensor::wrap() of a trainer's own memory, or Tensor::symmetric(),
// which the ranks of a host access directly. They are averaged in buckets of at least bucket_size elements.
class GradientSync {
 public:
  GradientSync(stretto::Communicator ranks, std::vector<stretto::Tensor> gradients, std::int64_t bucket_size)
      : ranks_(std::move(ranks)), stream_("gradients"), gradients_(std::move(gradients)), bucket_size_(bucket_size) {}

  void ready() {  // called when the next gradient is complete
    waiting_ += gradients_[ready_++].size();
    if (waiting_ < bucket_size_ && ready_ < gradients_.size()) return;
    stretto::OperationGroup bucket;  // one task of the stream
    for (; sent_ < ready_; ++sent_) (void)ranks_.all_reduce(gradients_[sent_], stretto::ReduceOp::avg, stream_);
    averages_.push_back(bucket.end());
    waiting_ = 0;
  }
  void finish() {  // blocks until all gradients are averages
    for (const stretto::Work& average : averages_) average.wait();
    averages_.clear();
    ready_ = sent_ = 0;
  }

 private:
  stretto::Communicator ranks_;
  stretto::Stream stream_;
  std::vector<stretto::Tensor> gradients_;
  std::int64_t bucket_size_;
  std::vector<stretto::Work> averages_;  // in flight
  std::size_t ready_ = 0, sent_ = 0;     // number of complete gradients, and of those on their way
  std::int64_t waiting_ = 0;             // elements of complete gradients that are not on their way
};
