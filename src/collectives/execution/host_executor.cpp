#include "collectives/execution/host_executor.hpp"

#include <fmt/format.h>
#include <algorithm>

#include "collectives/execution/plan_run.hpp"
#include "collectives/execution/run_until_done.hpp"
#include "collectives/execution/shared_memory.hpp"

namespace stretto {
namespace {

// A sequence and the one of its executions that is under way: being compared, deciding on its plan, or running.
class Progress {
 public:
  Progress(const Sequence& sequence, Precedence::Operation& precedence) : sequence_(sequence), precedence_(precedence) {}

  bool finished() const { return next_ == sequence_.size(); }
  bool advance() {
    if (finished()) return false;
    if (check_) return advance_check();
    if (exchange_) return advance_talk();
    if (shared_) return advance_run(*shared_);
    if (run_) return advance_run(*run_);
    const Execution& execution = sequence_[next_];
    if (execution.checking == nullptr) return begin_plan();
    const Checking& checking = *execution.checking;
    check_ = std::make_unique<CheckRun>(*checking.check, checking.checked, checking.communicator);
    return true;
  }
  std::vector<int> awaited() const {  // ranks of the job
    std::vector<int> members;
    if (check_) members = check_->awaited();
    if (exchange_) members = exchange_->awaited();
    if (shared_) members = shared_->awaited();
    if (run_) members = run_->awaited();
    return job_ranks_of(members, *sequence_[next_].links);
  }

 private:
  bool advance_check() {
    const bool moved = check_->advance();
    if (!check_->finished()) return moved;
    check_.reset();
    return begin_plan();
  }
  bool begin_plan() {
    current_ = sequence_[next_];
    current_.precedence = &precedence_;
    if (current_.choices == nullptr) {
      begin_run(false);
    } else {
      exchange_ = std::make_unique<BufferExchange>(current_, *current_.choices);
    }
    return true;
  }
  bool advance_talk() {
    const bool moved = exchange_->advance();
    if (!exchange_->finished()) return moved;
    const PlanVariant& way = exchange_->symmetric() ? current_.choices->symmetric : current_.choices->ordinary;
    exchange_.reset();
    current_.take(way);
    if (current_.settled) current_.settled(way);
    begin_run(true);
    return true;
  }
  void begin_run(bool announced) {
    if (shares_memory(current_.plan->request.method.algorithm)) {
      shared_ = std::make_unique<SharedMemoryRun>(current_, announced);
    } else {
      run_ = std::make_unique<PlanRun>(current_);
    }
  }
  template <class Run>
  bool advance_run(Run& run) {
    const bool moved = run.advance();
    if (!run.finished()) return moved;
    shared_.reset();
    run_.reset();
    ++next_;
    return true;
  }

  const Sequence& sequence_;
  Precedence::Operation& precedence_;
  std::size_t next_ = 0;
  Execution current_;
  std::unique_ptr<CheckRun> check_;
  std::unique_ptr<BufferExchange> exchange_;
  std::unique_ptr<SharedMemoryRun> shared_;
  std::unique_ptr<PlanRun> run_;
};

}  // namespace

std::vector<int> job_ranks_of(std::vector<int> members, const Links& links) {
  for (int& member : members) member = links.membership().job_ranks[member];
  return members;
}

void give_up(std::vector<int> ranks, Network& network, const std::string& what) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  fail(ErrorCode::timeout, "Rank {} waited {} s for rank {} in {}", network.job().rank(), network.timeout(),
       fmt::join(ranks, ", "), what);
}

void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background, Priority priority,
             const std::function<std::string()>& describe) {
  Precedence::Operation precedence(network.precedence(), priority);
  std::vector<Progress> all;
  all.reserve(sequences.size());
  for (const Sequence& sequence : sequences) all.emplace_back(sequence, precedence);
  const WaitPolicy& base = sequences.front().front().links->wait_policy();  // groups seldom mix routes
  const WaitPolicy policy = in_background ? base.in_background() : base;
  const auto advance = [&] {
    bool moved = false;
    bool finished = true;
    precedence.begin_look();
    for (Progress& progress : all) {
      moved |= progress.advance();
      finished &= progress.finished();
    }
    precedence.looked();
    return finished ? Progressed::to_the_end : moved ? Progressed::something : Progressed::nothing;
  };
  naming_losses(network, [&] {
    run_until_done(network, policy, network.timeout(), advance, [&] {
      std::vector<int> ranks;
      for (const Progress& progress : all) {
        const std::vector<int> more = progress.awaited();
        ranks.insert(ranks.end(), more.begin(), more.end());
      }
      give_up(std::move(ranks), network, describe());
    });
  });
  ensure(precedence.left_to_send() == 0, "{} bytes of {} have been handed to no link.", precedence.left_to_send(),
         describe());
}

}  // namespace stretto
