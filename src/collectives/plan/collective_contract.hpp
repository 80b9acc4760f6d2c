#pragma once
#include "collectives/plan/plan_builder.hpp"

namespace stretto {

// The guarantees of a collective: the sizes of every rank's buffers, how input and output overlap in place, and the elements
// that each rank's input and output must hold. Elements are numbered. Ranks that contribute to one result use the same
// number for it; otherwise a number also identifies the rank that owns the element. The requests of `plans` must agree.
class CollectiveContract {
 public:
  explicit CollectiveContract(const std::vector<Plan>& plans)
      : collective_(plans[0].request.collective),
        size_(static_cast<int>(plans.size())),
        root_(plans[0].request.root),
        shares_(Shares::of(plans[0].request)) {
    for (const Plan& plan : plans) {
      inputs_.push_back(input_count(plan.request));
      outputs_.push_back(output_count(plan.request));
    }
    if (collective_ != Collective::all_to_all) return;
    pair_begins_.reserve(plans.size() * plans.size() + 1);
    pair_begins_.push_back(0);
    for (const Plan& plan : plans) {
      for (int to = 0; to < size_; ++to) {
        const PlanRequest& request = plan.request;
        pair_begins_.push_back(pair_begins_.back() + (request.counts.empty() ? request.count : request.counts[to]));
      }
    }
  }

  // A barrier is an all-reduce whose result is not used.
  bool sums() const { return reduces(collective_) || collective_ == Collective::barrier; }

  std::int64_t inputs(int rank) const { return inputs_[rank]; }
  std::int64_t outputs(int rank) const { return outputs_[rank]; }

  // In place, the offset of the input in the output, or of the output in the input; one of the two is 0.
  std::int64_t input_begin_in_place(int rank) const {
    const bool gathers = collective_ == Collective::all_gather || (collective_ == Collective::gather && rank == root_);
    return gathers ? shares_.begin(rank) : 0;
  }
  std::int64_t output_begin_in_place(int rank) const {
    const bool scatters = collective_ == Collective::reduce_scatter || (collective_ == Collective::scatter && rank == root_);
    return scatters ? shares_.begin(rank) : 0;
  }

  // The number of a rank's first input element; the others follow it.
  std::int64_t first_input_element(int rank) const {
    switch (collective_) {
      case Collective::all_to_all: return pair_begin(rank, 0);
      case Collective::all_gather:
      case Collective::gather: return shares_.begin(rank);
      default: return 0;
    }
  }
  // Calls run(first element, count) for each run of consecutive numbers in a rank's output.
  template <class Run>
  void for_each_output_run(int rank, Run run) const {
    switch (collective_) {
      case Collective::all_to_all:
        for (int from = 0; from < size_; ++from) run(pair_begin(from, rank), pair_count(from, rank));
        return;
      case Collective::reduce_scatter:
      case Collective::scatter: return run(shares_.begin(rank), outputs(rank));
      default: return run(0, outputs(rank));
    }
  }

 private:
  std::int64_t pair_begin(int from, int to) const { return pair_begins_[static_cast<std::size_t>(from) * size_ + to]; }
  std::int64_t pair_count(int from, int to) const { return pair_begin(from, to + 1) - pair_begin(from, to); }

  Collective collective_;
  int size_;
  int root_;
  Shares shares_;
  std::vector<std::int64_t> inputs_, outputs_;
  std::vector<std::int64_t> pair_begins_;  // all_to_all: first element by sender, then by receiver
};

}  // namespace stretto
