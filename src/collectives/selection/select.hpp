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

  // STRETTO_CALIBRATE as rank 0 has it: whether this job may measure what it does not know.
  bool may_calibrate() const { return may_calibrate_; }
  // While it lives, choices are those of the machine alone: no rule, order of summation or explanation that the user asks
  // for.
  class Unruled {
   public:
    explicit Unruled(Selector& selector);
    ~Unruled();
    Unruled(const Unruled&) = delete;
    Unruled& operator=(const Unruled&) = delete;

   private:
    Selector& selector_;
    std::vector<Rule> rules_;
    bool deterministic_, explains_;
  };
  // How many measurements of so many ranks were made on this machine. ranks_per_node: 0 for ranks on one node.
  int measurements(const std::string& route, int ranks, int ranks_per_node) const;
  // Adds routes of a tuning file's text, which take precedence. All ranks must do so at the same place in their calls, and
  // forget the plans that they have made by older costs (Communicator::Group::forget_plans()).
  void learn(const std::string& tuning, const std::string& source);
  const Tuning& tuning() const { return tuning_; }
  double ranks_per_core() const { return circumstances_.ranks_per_core; }
  bool one_host() const { return one_host_; }

 private:
  Circumstances circumstances_on_gpus(const std::vector<int>& nodes) const;
  Tuning tuning_;
  std::size_t measured_here_ = 0;  // the first of tuning_.routes
  Circumstances circumstances_;
  bool explains_;
  bool one_host_ = true;
  bool may_calibrate_ = false;
};

}  // namespace stretto
