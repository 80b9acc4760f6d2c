#pragma once
#include <cstddef>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/overlap/flat_tensors.hpp"

namespace stretto {

// Sums gradients over a group while backward still computes others (PyTorch DDP; Li et al. 2020). A bucket is a run of
// gradients of one type, in the order in which they become ready, with at least bucket_bytes. Its sum starts on the
// stream when its last gradient is ready and all earlier buckets have started. So all ranks start the buckets in the
// same order, even if their gradients become ready in different orders. The first bucket is small, so that
// communication begins early. Towards the end buckets become smaller, since less computation is left to hide their
// sums; for the last bucket none is left.
//
// The order is learned. In the first step it is the order in which the gradients were given. At the end of that step,
// rank 0 tells the others in which order its gradients became ready, and this is the order from then on. Inside a
// bucket, gradients lie in the order given. If they are neighbours in memory in that order, their memory itself
// travels; this is fastest in the symmetric heap (Tensor::symmetric). Otherwise the bucket is packed when it starts,
// and unpacked in finish().
//
// A bucket travels as one all-reduce. With `scatter` it travels as a reduce-scatter, after which each rank has the sum
// of its share, and an all-gather of the shares. The all-gather of any bucket can be postponed: the rank then has the
// sums of its share only and updates only that share of the parameters, and the parameters are gathered during the next
// forward (PostponedGather). This is Centauri's substitution (Chen et al. 2024) and Megatron's --overlap-param-gather,
// for a choice of buckets (best_postponed).
//
// Traffic per rank: 2 (p-1)/p of all bytes, in about total / bucket_bytes messages. Neither overlap nor postponing
// changes the bits of the sums; a different cut into buckets may. Only one thread may use an object. After an exception
// the object cannot be used again.
class STRETTO_API GradientBuckets {
 public:
  struct Options {
    std::size_t bucket_bytes = std::size_t{1} << 20;
    std::size_t first_bucket_bytes = std::size_t{512} << 10;  // also for the last bucket; at most bucket_bytes
    bool overlap = true;                                      // false: finish() sums all buckets, in computation()
    bool scatter = false;                                     // reduce-scatter and all-gather instead of one all-reduce
  };

  // All ranks of the group must give the gradients in the same order, best in the order of backward and one after the
  // other in memory. The object shares ownership of the tensors.
  GradientBuckets(std::vector<Tensor> gradients, Communicator group, Stream stream, const Options& options);

  // Call it when gradient i is complete for this step; the caller must not touch it until finish() has returned. Call
  // it once per step for each gradient, in any order; throws if it was ready already.
  void ready(std::size_t i);
  // Ends the current bucket, for example at the end of a layer after which backward waits for something: from the
  // second step on, that bucket starts without waiting for later gradients. Has an effect only on rank 0 in the first
  // step, while the order is learned.
  void flush();
  // Blocks until all sums are there (on a GPU, makes computation() wait for them), and begins the next step. Throws if
  // a gradient was not ready. In the first step rank 0 then tells the others its order.
  void finish();

  // Chooses the buckets whose all-gather is left to the caller from now on, one flag per bucket, the same on all ranks.
  // Only with `scatter`, between two steps, and after the first step, in which the buckets may still change. If an
  // optimizer keeps state only for its share of a bucket, that state must be gathered before the bucket's flag is
  // cleared.
  void set_postponed(std::vector<bool> buckets);
  bool is_postponed(std::size_t bucket) const { return postponed_[bucket]; }
  bool knows_order() const { return knows_order_; }

  // The elements whose sums this rank has after finish(). complete(): all elements of buckets that are not postponed.
  // shares(): this rank's share of every bucket, postponed or not; together, the ranks of the group have each element
  // once.
  std::vector<ElementRange> complete() const;
  std::vector<ElementRange> shares() const;

  std::size_t bucket_count() const { return buckets_.size(); }
  // The gradients of a bucket, in the order in which they lie in it.
  const std::vector<std::size_t>& members(std::size_t bucket) const { return buckets_[bucket].members; }
  const Communicator& group() const { return group_; }
  const Stream& stream() const { return stream_; }  // computation() without overlap

  // Times of a bucket in the last step. ready: when its last gradient was ready, by now_seconds(). reduce, gather: the
  // seconds that its reduce-scatter and its all-gather took; gather is 0 if that was postponed. Without `scatter`,
  // reduce is the all-reduce. On a GPU the call blocks until they are done.
  struct Times {
    double ready = 0, reduce = 0, gather = 0;
  };
  Times times(std::size_t bucket) const;

 private:
  struct Bucket {
    std::vector<std::size_t> members;
    FlatTensors memory;
    std::size_t waiting;  // number of members that are not ready
    Work reduced = {}, gathered = {};
    Work ready = {};  // the place in computation() where the last member was ready
  };
  // A gradient in the order of readiness, and whether a bucket ends after it.
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
  std::vector<Place> came_;      // first step only: gradients in the order of ready()
  std::size_t started_ = 0;      // number of buckets started in this step
  std::vector<bool> postponed_;  // by bucket
  bool knows_order_ = false;
};

}  // namespace stretto
