#include "collectives/host_executor.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "collectives/plan_run.hpp"
#include "collectives/shared_memory.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// A sequence and the one of its executions that is under way: being compared, deciding on its plan, or running.
class Progress {
 public:
  explicit Progress(const Sequence& sequence) : sequence_(sequence) {}

  bool finished() const { return next_ == sequence_.size(); }
  bool advance() {
    if (finished()) return false;
    if (check_) return advance_check();
    if (talk_) return advance_talk();
    if (shared_) return advance_run(*shared_);
    if (run_) return advance_run(*run_);
    const Execution& execution = sequence_[next_];
    if (execution.check == nullptr) return begin_plan();
    check_ = std::make_unique<CheckRun>(*execution.check, execution.checked, execution.communicator);
    return true;
  }
  std::vector<int> awaited() const {  // ranks of the job
    std::vector<int> members;
    if (check_) members = check_->awaited();
    if (talk_) members = talk_->awaited();
    if (shared_) members = shared_->awaited();
    if (run_) members = run_->awaited();
    for (int& member : members) member = sequence_[next_].links->membership().job_ranks[member];
    return members;
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
    if (current_.choices == nullptr) {
      begin_run(false);
    } else {
      talk_ = std::make_unique<MemoryTalk>(current_);
    }
    return true;
  }
  bool advance_talk() {
    const bool moved = talk_->advance();
    if (!talk_->finished()) return moved;
    const Way& way = talk_->symmetric() ? current_.choices->symmetric : current_.choices->ordinary;
    talk_.reset();
    current_.plan = way.plan.get();
    current_.caller.wire = way.wire;
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
  std::size_t next_ = 0;
  Execution current_;
  std::unique_ptr<CheckRun> check_;
  std::unique_ptr<MemoryTalk> talk_;
  std::unique_ptr<SharedMemoryRun> shared_;
  std::unique_ptr<PlanRun> run_;
};

[[noreturn]] void give_up(const std::vector<Progress>& all, int rank, double seconds, const std::string& what) {
  std::vector<int> peers;
  for (const Progress& progress : all) {
    const std::vector<int> more = progress.awaited();
    peers.insert(peers.end(), more.begin(), more.end());
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  fail(ErrorCode::timeout, "Rank {} waited {} s for rank {} in {}", rank, seconds, fmt::join(peers, ", "), what);
}

void run_together(const std::vector<Sequence>& sequences, Network& network, bool in_background,
                  const std::function<std::string()>& describe) {
  std::vector<Progress> all;
  all.reserve(sequences.size());
  for (const Sequence& sequence : sequences) all.emplace_back(sequence);
  const WaitPolicy policy = in_background ? network.wait_policy().in_background() : network.wait_policy();
  Waiter waiter(policy, network.segment().bell());
  const double timeout = number_setting("STRETTO_TIMEOUT");
  while (true) {
    bool moved = false;
    bool finished = true;
    for (Progress& progress : all) {
      moved |= progress.advance();
      finished &= progress.finished();
    }
    if (finished) return;
    if (moved) {
      waiter.moved();
      continue;
    }
    if (waiter.pause_briefly()) continue;
    network.job().check();
    if (waiter.idle_seconds() > timeout) give_up(all, network.job().rank(), timeout, describe());
    waiter.pause();
  }
}

}  // namespace

void execute(const std::vector<Sequence>& sequences, Network& network, bool in_background,
             const std::function<std::string()>& describe) {
  try {
    run_together(sequences, network, in_background, describe);
  } catch (const Error& error) {
    // A broken connection, or a peer's memory that is not there, is often the echo of a death elsewhere, of which the job
    // learns by itself a moment later and by name.
    if (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::unavailable) throw;
    for (int look = 0; look < 100; ++look) {
      network.job().check();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw;
  }
}

}  // namespace stretto
