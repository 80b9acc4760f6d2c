#pragma once
#include <map>
#include <string>
#include <vector>

#include "stretto/planning/tuning.hpp"
#include "transport/links.hpp"

namespace stretto {

// Chooses methods with the tuning and the circumstances that the ranks of a job have agreed on.
class Selector {
 public:
  // Collective. All ranks take rank 0's tuning. Throws if settings differ that must be the same on all ranks.
  Selector(JobControl& job, const Network& network);
  // nodes: of the communicator's members. symmetric: whether all their buffers are in memory that all of them reach.
  Choice choose(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes, const Links& links,
                bool symmetric, bool may_be_plain) const;
  // Like choose(), for buffers on GPUs. done_whole: whether their links perform this collective as one operation.
  Choice choose_on_gpus(const PlanRequest& request, DType dtype, ReduceOp op, const std::vector<int>& nodes, bool done_whole,
                        bool may_be_plain) const;
  // The time by the cost model, for a request whose method is known. on_gpus: whether the buffers are on GPUs.
  double seconds(const PlanRequest& request, DType wire, const std::vector<int>& nodes, bool on_gpus) const;
  bool explains() const { return explains_; }  // STRETTO_EXPLAIN

  // Whether this job may measure routes that were not measured, by rank 0's STRETTO_CALIBRATE, STRETTO_TUNING and
  // STRETTO_DETERMINISTIC.
  bool may_calibrate() const { return may_calibrate_; }
  // While it lives, choices ignore the user's rules, and explain nothing: a measurement is of the machine alone.
  class WithoutUserRules {
   public:
    explicit WithoutUserRules(Selector& selector);
    ~WithoutUserRules();
    WithoutUserRules(const WithoutUserRules&) = delete;
    WithoutUserRules& operator=(const WithoutUserRules&) = delete;

   private:
    Selector& selector_;
    std::vector<Rule> rules_;
    bool explains_;
  };
  // Whether this job knows a measurement of this machine with `ranks` ranks. ranks_per_node: 0 for ranks on one node.
  bool has_measured(const std::string& route, int ranks, int ranks_per_node) const;
  // Adds routes of a tuning file's text, which take precedence. All ranks must do so at the same place in their calls, and
  // forget the plans that they have made by older costs (Communicator::Group::forget_plans()).
  void learn(const std::string& tuning, const std::string& source);
  // See Communicator::choices() and Communicator::choose_by(); ranks, nodes: of the job. Plans must be forgotten, as for
  // learn().
  std::string choices(int ranks, int nodes) const;
  std::string choose_by(const std::string& choices, int ranks, int nodes);
  const Tuning& tuning() const { return tuning_; }
  double ranks_per_core() const { return circumstances_.ranks_per_core; }
  bool one_host() const { return one_host_; }

 private:
  Circumstances circumstances_on_gpus(const std::vector<int>& nodes) const;
  // Replaces all that is known. file: the text of a tuning file.
  void use(const std::string& file, const std::string& source);
  // The conditions, besides tuning files, on which choices depend.
  std::map<std::string, std::string> conditions(int ranks, int nodes) const;
  Tuning tuning_;
  std::string file_;                 // the argument of the last use()
  std::vector<std::string> learnt_;  // the tunings of learn() since then
  LinkSetting links_;
  std::string tuning_file_;        // STRETTO_TUNING of rank 0
  std::size_t measured_here_ = 0;  // the first of tuning_.routes
  Circumstances circumstances_;
  bool explains_;
  bool one_host_ = true;
  bool may_calibrate_ = false;
};

}  // namespace stretto
