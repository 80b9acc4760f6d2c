#include "collectives/host_executor.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "collectives/plan_run.hpp"
#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// A sequence and the one of its executions that is under way: being compared, or running.
struct Progress {
  const Sequence& sequence;
  std::size_t next = 0;
  std::unique_ptr<CheckRun> check = {};
  std::unique_ptr<PlanRun> run = {};

  bool finished() const { return !check && !run && next == sequence.size(); }
  bool advance() {
    if (!check && !run) {
      if (next == sequence.size()) return false;
      begin(sequence[next]);
    }
    if (check) {
      const bool moved = check->advance();
      if (!check->finished()) return moved;
      check.reset();
      run = std::make_unique<PlanRun>(sequence[next]);
    }
    const bool moved = run->advance();
    if (run->finished()) {
      run.reset();
      ++next;
    }
    return moved;
  }
  void begin(const Execution& execution) {
    if (execution.check != nullptr) {
      check = std::make_unique<CheckRun>(*execution.check, execution.checked, execution.communicator);
    } else {
      run = std::make_unique<PlanRun>(execution);
    }
  }
  std::vector<int> awaited() const {
    std::vector<int> members = run ? run->awaited() : check ? check->awaited() : std::vector<int>();
    for (int& member : members) member = sequence[next].links->membership().job_ranks[member];
    return members;
  }
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
  for (const Sequence& sequence : sequences) all.push_back({sequence});
  const WaitPolicy& base = sequences.front().front().links->wait_policy();  // groups seldom mix routes
  const WaitPolicy policy = in_background ? base.in_background() : base;
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
