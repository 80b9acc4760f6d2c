#pragma once
#include <functional>
#include <string>

#include "stretto/overlap/gradient_buckets.hpp"

namespace stretto {

// The all-gathers that GradientBuckets has postponed, of other tensors: each rank has changed its shares of them, and gets
// the others' behind the next forward, in the order in which that needs them (Megatron's --overlap-param-gather). There is a
// tensor for each gradient, of as many elements; those of a bucket are gathered together, first the bucket that backward
// finished last and forward therefore needs first. Where a bucket's tensors are neighbours in memory like its
// gradients, nothing is copied. Traffic: (p-1)/p of the postponed buckets' bytes.
//
// One thread uses it, the same as the buckets; after an exception it cannot be used again.
class STRETTO_API PostponedGather {
 public:
  // Of what is postponed now; make another after set_postponed(). The tag appears in the ledger.
  PostponedGather(const GradientBuckets& buckets, const std::vector<Tensor>& tensors, std::string tag);

  // Collective. The tensors are not used until they have been waited for. On the stream of the buckets; without overlap in
  // the caller, to the end. update, if given, brings this rank's share of a bucket up to date (ElementRange::tensor counts
  // as the tensors do) before that is gathered, while the bucket before it travels already. Waits first for what is left of
  // an earlier start.
  using Update = std::function<void(const std::vector<ElementRange>& share)>;
  void start(const Update& update = {});
  // Blocks until the tensor is complete; at once where nothing of it is on its way.
  void wait_for(std::size_t tensor);
  void wait();  // for all

 private:
  struct Part {
    std::vector<std::size_t> members;  // tensors
    FlatTensors memory;
    Work arriving = {};
    bool under_way = false;
  };
  void wait_for(Part& part) const;

  Communicator group_;
  Stream stream_;
  std::string tag_;
  std::vector<Part> parts_;           // in the order in which they travel
  std::vector<std::size_t> part_of_;  // by tensor; -1: it is not postponed
};

}  // namespace stretto
