#include "collectives/host_executor.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "device/memory.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

struct Active {
  Link* link;
  Transfer transfer;
  int peer;
};

class Executor {
 public:
  Executor(const Execution& execution, Network& network, Links& links)
      : run_(execution),
        network_(network),
        links_(links),
        width_(size_of(execution.dtype)),
        lanes_(execution.plan.lanes.size()) {
    if (execution.plan.scratch_count > 0) {
      scratch_ = pool_allocate(static_cast<std::size_t>(execution.plan.scratch_count) * width_);
    }
  }

  ~Executor() {
    for (LaneState& lane : lanes_) {
      for (Active& active : lane.active) active.link->cancel(active.transfer);
    }
  }
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void run() {
    const WaitPolicy policy = run_.in_background ? network_.wait_policy().in_background() : network_.wait_policy();
    Waiter waiter(policy, network_.segment().bell());
    const double timeout = number_setting("STRETTO_TIMEOUT");
    while (true) {
      bool moved = false;
      bool finished = true;
      for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        moved |= advance(lane);
        finished &= is_finished(lane);
      }
      if (finished) return;
      if (moved) {
        waiter.moved();
        continue;
      }
      network_.job().check();
      if (waiter.idle_seconds() > timeout) give_up(timeout);
      waiter.pause();
    }
  }

 private:
  struct LaneState {
    std::size_t round = 0;  // the next to begin
    std::vector<Active> active;
  };

  bool is_finished(std::size_t lane) const {
    return lanes_[lane].active.empty() && lanes_[lane].round == run_.plan.lanes[lane].round_ends.size();
  }

  // Moves what can be moved in a lane, and begins the next round when one is over.
  bool advance(std::size_t lane) {
    LaneState& state = lanes_[lane];
    bool moved = false;
    if (state.active.empty() && !is_finished(lane)) {
      begin_round(lane);
      moved = true;
    }
    for (Active& active : state.active) moved |= active.link->progress(active.transfer);
    std::erase_if(state.active, [](const Active& active) { return active.transfer.complete(); });
    return moved;
  }

  void begin_round(std::size_t lane) {
    const Lane& plan = run_.plan.lanes[lane];
    LaneState& state = lanes_[lane];
    const std::size_t begin = state.round == 0 ? 0 : plan.round_ends[state.round - 1];
    for (std::size_t i = begin; i < plan.round_ends[state.round]; ++i) {
      const Step& step = plan.steps[i];
      if (step.kind == StepKind::copy) {
        copy(step);
        continue;
      }
      Transfer transfer;
      transfer.dtype = run_.dtype;
      transfer.op = run_.op;
      if (step.kind == StepKind::send) {
        transfer.source = at(step.source);
        transfer.bytes = bytes(step.source);
      } else {
        transfer.destination = const_cast<std::byte*>(at(step.destination));
        transfer.bytes = bytes(step.destination);
        if (step.kind == StepKind::recv_reduce) transfer.operand = at(step.source);
      }
      state.active.push_back({&links_.to(step.peer, static_cast<int>(lane)), transfer, step.peer});
    }
    ++state.round;
  }

  void copy(const Step& step) const {
    const std::byte* const from = at(step.source);
    auto* const to = const_cast<std::byte*>(at(step.destination));
    if (from != to) std::memcpy(to, from, bytes(step.source));  // equal in place
  }

  const std::byte* at(const Slice& slice) const {
    const std::byte* const begin = slice.buffer == Buffer::input    ? run_.input
                                   : slice.buffer == Buffer::output ? run_.output
                                                                    : scratch_.get();
    return begin + static_cast<std::size_t>(slice.offset) * width_;
  }
  std::size_t bytes(const Slice& slice) const { return static_cast<std::size_t>(slice.count) * width_; }

  [[noreturn]] void give_up(double timeout) const {
    std::vector<int> peers;
    for (const LaneState& lane : lanes_) {
      for (const Active& active : lane.active) peers.push_back(links_.membership().job_ranks[active.peer]);
    }
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    fail(ErrorCode::timeout, "Rank {} waited {} s for rank {} in {}", network_.job().rank(), timeout, fmt::join(peers, ", "),
         run_.describe());
  }

  const Execution& run_;
  Network& network_;
  Links& links_;
  std::size_t width_;
  std::shared_ptr<std::byte> scratch_;
  std::vector<LaneState> lanes_;
};

}  // namespace

void execute(const Execution& execution, Network& network, Links& links) {
  try {
    Executor(execution, network, links).run();
  } catch (const Error& error) {
    // A broken connection, or a peer's memory that is not there, is often the echo of a death elsewhere, of which the job
    // learns by itself a moment later and by name.
    if (error.code() == ErrorCode::timeout || error.code() == ErrorCode::peer_gave_up) throw;
    for (int look = 0; look < 100; ++look) {
      network.job().check();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw;
  }
}

}  // namespace stretto
