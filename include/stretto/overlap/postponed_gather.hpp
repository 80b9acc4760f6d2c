#pragma once
#include <functional>
#include <string>

#include "stretto/overlap/gradient_buckets.hpp"

namespace stretto {

// The all-gathers that GradientBuckets has postponed, usually of parameters: each rank has changed its shares of some
// tensors, and gets the other ranks' shares while the next forward computes, in the order in which forward needs them
// (Megatron's --overlap-param-gather). There is one tensor per gradient, with the same number of elements. Tensors of a
// bucket are gathered together. The bucket that backward finished last comes first, since forward needs it first. If a
// bucket's tensors are neighbours in memory like its gradients, nothing is copied. Traffic per rank: (p-1)/p of the
// postponed buckets' bytes.
//
// Only one thread may use an object, the one that uses the buckets. After an exception it cannot be used again.
class STRETTO_API PostponedGather {
 public:
  // For the buckets that are postponed now; after set_postponed(), make a new object. The tag appears in the ledger.
  PostponedGather(const GradientBuckets& buckets, const std::vector<Tensor>& tensors, std::string tag);

  // Starts all gathers on the buckets' stream; without overlap, does them in computation(). Waits first for gathers of
  // an earlier start. Collective. Nothing may use the tensors until they have been waited for. update, if given, is
  // called for each bucket before its gather starts, while earlier buckets travel; it must bring this rank's share of
  // that bucket up to date. ElementRange::tensor is an index into `tensors`.
  using Update = std::function<void(const std::vector<ElementRange>& share)>;
  void start(const Update& update = {});
  // Blocks until the tensor is complete (on a GPU, makes computation() wait); returns at once if it is not being
  // gathered.
  void wait_for(std::size_t tensor);
  void wait();  // for all tensors

 private:
  struct Part {
    std::vector<std::size_t> members;  // indices of tensors
    FlatTensors memory;
    Work arriving = {};
    bool under_way = false;
  };
  void wait_for(Part& part) const;

  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::vector<Part> parts_;           // in the order in which they travel
  std::vector<std::size_t> part_of_;  // by tensor; -1 if it is not postponed
};

}  // namespace stretto
