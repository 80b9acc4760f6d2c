#pragma once
#include <cstddef>
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto {

// Sums gradients over a group while backward is still computing others (PyTorch DDP; Li et al. 2020). Gradients are given in
// the order in which backward finishes them, one behind the other in memory; a bucket is a run of them of at least
// bucket_bytes (the last may be smaller), and its all-reduce starts on the stream the moment its last gradient is ready.
// Traffic: 2 (p-1)/p of all bytes, in about total / bucket_bytes messages. With overlap or without, the same buckets are
// reduced in the same order: the results are bitwise equal.
// One thread uses it; after an exception it cannot be used again.
class STRETTO_API GradientBuckets {
 public:
  struct Options {
    std::size_t bucket_bytes = std::size_t{4} << 20;
    bool overlap = true;  // false: all buckets are reduced in finish(), by the caller
  };

  // gradients[i + 1] begins where gradients[i] ends. The tensors are kept alive and must not move. They travel fastest from
  // the symmetric heap (Tensor::symmetric).
  GradientBuckets(std::vector<Tensor> gradients, Communicator group, Stream stream, const Options& options);

  // Gradient i is complete for this step and will not be touched before finish() has returned. In any order, once each a
  // step; throws otherwise.
  void ready(std::size_t i);
  // Blocks until all sums are there; throws if a gradient was not ready. Begins the next step.
  void finish();

  std::size_t bucket_count() const { return buckets_.size(); }

 private:
  struct Bucket {
    Tensor memory;  // of all its gradients
    std::size_t members;
    std::size_t waiting;  // members that are not ready
    Work work;
  };
  void reduce(Bucket& bucket, const Stream& stream);

  Communicator group_;
  Stream stream_;
  Options options_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // by gradient
  std::vector<bool> is_ready_;
};

}  // namespace stretto
