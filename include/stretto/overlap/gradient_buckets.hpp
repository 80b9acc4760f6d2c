#pragma once
#include <cstddef>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/flat_tensors.hpp"

namespace stretto {

// Sums gradients over a group while backward is still computing others (PyTorch DDP; Li et al. 2020). A bucket is a run of
// gradients, in the order in which they become ready, of one type and at least bucket_bytes; its sum starts on the stream
// when its last gradient is ready and all buckets before it have gone. So every rank starts the buckets in the same order,
// whatever the order in which its own gradients become ready. The first bucket is small, so that the link begins early;
// towards the end they become smaller, for there is less left to hide their sums, and nothing for the last.
//
// The order is learned. In the first step it is that in which the gradients were given; from the second step on it is that
// in which they became ready on rank 0 in the first, which rank 0 tells the others at the end of it. Inside a bucket they
// lie in the order given: where a bucket's gradients are neighbours in memory in that order, their memory itself travels,
// which is fastest from the symmetric heap (Tensor::symmetric); elsewhere the bucket is packed when it starts and unpacked
// in finish().
//
// A bucket travels as one all-reduce; with scatter as the two halves of one, a reduce-scatter that leaves each rank the sum
// of its share and an all-gather of these. The all-gather of any bucket can be postponed: the rank then has the sums of its
// share only, updates that share of the parameters, and the parameters are gathered behind the next forward
// (PostponedGather), which has nothing else to hide. That is Centauri's substitution (Chen et al. 2024) and Megatron's
// --overlap-param-gather, for those buckets for which it is good (best_postponed).
//
// Traffic: 2 (p-1)/p of all bytes, in about total / bucket_bytes messages. With overlap or without, and however many buckets
// are postponed, the same sums are formed in the same way: their bits are equal. They may depend on which bucket a gradient
// is in. One thread uses it; after an exception it cannot be used again.
class STRETTO_API GradientBuckets {
 public:
  struct Options {
    std::size_t bucket_bytes = std::size_t{1} << 20;
    std::size_t first_bucket_bytes = std::size_t{512} << 10;  // also of the last; at most bucket_bytes
    bool overlap = true;                                      // false: all buckets are summed in finish(), by the caller
    bool scatter = false;                                     // the two halves of an all-reduce instead of one
  };

  // Gradients on all ranks of the group in the same order, best in that of backward and one behind the other in memory. The
  // tensors are kept alive and must not move.
  GradientBuckets(std::vector<Tensor> gradients, Communicator group, Stream stream, const Options& options);

  // Gradient i is complete for this step and will not be touched before finish() has returned. In any order, once each a
  // step; throws otherwise.
  void ready(std::size_t i);
  // In the first step on rank 0: no bucket shall hold gradients of before and of after this place, such as the end of a
  // layer behind which backward will wait for something. From the second step on the bucket before it goes without waiting
  // for more. Elsewhere there is nothing to do: what is to go has gone.
  void flush();
  // Blocks until all sums are there; throws if a gradient was not ready. Begins the next step. In the first step rank 0 then
  // tells its order.
  void finish();

  // With scatter, between two steps and after the first (which says what the buckets are): from now on the all-gather of
  // these buckets, a flag for each, is left to the caller. Ranks give the same. An optimizer that has kept its state for a
  // share only must complete it before a bucket is no longer postponed.
  void set_postponed(std::vector<bool> buckets);
  bool is_postponed(std::size_t bucket) const { return postponed_[bucket]; }
  bool knows_order() const { return knows_order_; }

  // After finish() this rank has the sums of all buckets that are not postponed, and of its share of every bucket: over the
  // ranks of the group every element once, the same whatever is postponed.
  std::vector<ElementRange> complete() const;
  std::vector<ElementRange> shares() const;

  std::size_t bucket_count() const { return buckets_.size(); }
  // Of a bucket: its gradients, in the order in which they lie there.
  const std::vector<std::size_t>& members(std::size_t bucket) const { return buckets_[bucket].members; }
  const Communicator& group() const { return group_; }
  const Stream& stream() const { return stream_; }  // inline without overlap

  // Of a bucket in the last step: when its last gradient was ready (now_seconds()), and for how many seconds its sum
  // travelled. With scatter of each half, the second 0 where it was postponed; else the first is the whole. A GPU is waited
  // for.
  struct Times {
    double ready = 0, reduce = 0, gather = 0;
  };
  Times times(std::size_t bucket) const;

 private:
  struct Bucket {
    std::vector<std::size_t> members;
    FlatTensors memory;
    std::size_t waiting;  // members that are not ready
    Work reduced = {}, gathered = {};
    Work ready = {};  // the place in computation()
  };
  // A gradient in the order of readiness, and whether a bucket ends behind it.
  struct Place {
    std::size_t gradient;
    bool ends_bucket;
    bool operator==(const Place&) const = default;
  };
  void cut(const std::vector<Place>& order);
  void learn();
  ElementRange share(std::size_t bucket) const;
  void append_ranges(std::size_t bucket, const ElementRange& of, std::vector<ElementRange>& to) const;
  void start(std::size_t bucket);
  void unpack(std::size_t bucket) const;

  std::vector<Tensor> gradients_;
  Communicator group_;
  Stream stream_;
  Options options_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // by gradient
  std::vector<bool> is_ready_;
  std::vector<Place> came_;      // in the first step
  std::size_t started_ = 0;      // buckets of this step
  std::vector<bool> postponed_;  // by bucket
  bool knows_order_ = false;
};

}  // namespace stretto
