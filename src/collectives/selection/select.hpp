#pragma once
#include "stretto/tuning.hpp"
#include "transport/links.hpp"

namespace stretto {

// Chooses methods with the tuning and the circumstances that the ranks of a job have agreed on.
class Selector {
 public:
  // Collective. All ranks take rank 0's tuning. Throws if settings differ that must be the same on all ranks.
  Selector(Job& job, const Network& network);
  // nodes: of the communicator's members. symmetric: whether all their buffers are in memory that all of them reach.
  Choice choose(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes, const Links& links,
                bool symmetric, bool may_be_plain) const;
  // Like choose(), for buffers on GPUs. done_whole: whether their links perform this collective as one operation.
  Choice choose_on_gpus(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes, bool done_whole,
                        bool may_be_plain) const;
  // The time by the cost model, for a request whose method is known. on_gpus: whether the buffers are on GPUs.
  double seconds(const PlanRequest& request, DType wire, const std::vector<int>& nodes, bool on_gpus) const;
  bool explains() const { return explains_; }  // STRETTO_EXPLAIN

 private:
  Circumstances circumstances_on_gpus(const std::vector<int>& nodes) const;
  Tuning tuning_;
  Circumstances circumstances_;
  bool explains_;
};

}  // namespace stretto
