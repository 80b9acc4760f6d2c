#include "collectives/execution/host_executor.hpp"

#include <deque>
#include <optional>

#include "collectives/execution/give_up.hpp"
#include "collectives/execution/operation_run.hpp"
#include "collectives/execution/run_until_done.hpp"

namespace stretto {
namespace {

// A sequence, and its execution that is in progress.
class SequenceRun {
 public:
  SequenceRun(const Sequence& sequence, OperationPrecedence& precedence, ExecutionListener& listener)
      : sequence_(sequence), precedence_(precedence), listener_(listener) {}

  bool finished() const { return next_ == sequence_.size(); }
  bool advance() {
    if (finished()) return false;
    const Execution& execution = sequence_[next_];
    if (in_preamble()) return advance_preamble(*execution.preamble);
    if (!run_) run_.emplace(execution, &precedence_);
    const bool was_decided = run_->variant() != nullptr;
    const bool moved = run_->advance();
    if (!was_decided && run_->variant() != nullptr) listener_.decided(execution.call, *run_->variant());
    if (run_->finished()) go_on();
    return moved;
  }
  std::vector<int> awaited() const {  // ranks of the job
    std::vector<int> members;
    if (run_) {
      members = run_->awaited();
    } else if (in_preamble()) {
      members = sequence_[next_].preamble->awaited();
    }
    return finished() ? members : job_ranks_of(members, *sequence_[next_].links);
  }

 private:
  bool in_preamble() const { return !finished() && sequence_[next_].preamble && !sequence_[next_].preamble->finished(); }
  bool advance_preamble(Preamble& preamble) {
    const bool moved = preamble.advance();
    if (!preamble.finished()) return moved;
    if (sequence_[next_].planned == nullptr) go_on();
    return true;
  }
  void go_on() {
    run_.reset();
    ++next_;
  }

  const Sequence& sequence_;
  OperationPrecedence& precedence_;
  ExecutionListener& listener_;
  std::size_t next_ = 0;
  std::optional<OperationRun> run_;
};

}  // namespace

std::vector<int> job_ranks_of(std::vector<int> members, const Links& links) {
  for (int& member : members) member = links.membership().job_ranks[member];
  return members;
}

void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background, Priority priority,
             ExecutionListener& listener) {
  OperationPrecedence precedence(network.precedence(), priority);
  std::deque<SequenceRun> all;
  for (const Sequence& sequence : sequences) all.emplace_back(sequence, precedence, listener);
  const WaitPolicy& base = sequences.front().front().links->wait_policy();  // calls of one group seldom use different routes
  const WaitPolicy policy = in_background ? base.in_background() : base;
  const auto advance = [&] {
    bool moved = false;
    bool finished = true;
    precedence.begin_look();
    for (SequenceRun& run : all) {
      moved |= run.advance();
      finished &= run.finished();
    }
    precedence.looked();
    return finished ? Progressed::to_the_end : moved ? Progressed::something : Progressed::nothing;
  };
  naming_losses(network.job(), [&] {
    const auto awaited = [&] {
      std::vector<int> ranks;
      for (const SequenceRun& run : all) {
        const std::vector<int> more = run.awaited();
        ranks.insert(ranks.end(), more.begin(), more.end());
      }
      return ranks;
    };
    run_until_done(
        network, policy, network.timeout(), advance, awaited, [&] { return listener.describe(); },
        [&] { return listener.history(); }, [&] { listener.still_wait(awaited); });
  });
  // The description reads the ledger, which takes as long as a small operation: for an error only.
  if (const std::size_t left = precedence.left_to_send(); left != 0) {
    fail(ErrorCode::internal, "{} bytes of {} have been handed to no link.", left, listener.describe());
  }
}

}  // namespace stretto
