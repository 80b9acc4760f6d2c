#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/fail.hpp"
#include "stretto/server.hpp"

namespace stretto {

// Keeps what workers push to some values, by clock, until the pushes of all workers can be applied together.
template <class Pushed>
class PushClocks {
 public:
  explicit PushClocks(int workers) : clocks_(static_cast<std::size_t>(workers)), pushed_(clocks_.size()) {}

  // Throws for a push that is not the worker's next one.
  void count(int worker, std::int64_t clock) {
    std::int64_t& own = clocks_[static_cast<std::size_t>(worker)];
    require(clock == own, "Worker {} pushes clock {} behind {}; pushes come once each, in order.", worker, clock, own - 1);
    ++own;
  }
  void keep(int worker, Pushed pushed) { pushed_[static_cast<std::size_t>(worker)].push_back(std::move(pushed)); }
  bool has_whole_clock() const {
    return std::ranges::none_of(pushed_, [](const auto& of_worker) { return of_worker.empty(); });
  }
  // Returns the pushes of the oldest clock in the order of workers, so that a repeated run adds them in the same order.
  std::vector<Pushed> take_whole_clock() {
    std::vector<Pushed> result;
    for (auto& of_worker : pushed_) {
      result.push_back(std::move(of_worker.front()));
      of_worker.pop_front();
    }
    return result;
  }
  // The worker pushes no more.
  void leave(int worker) { left_.push_back(worker); }
  // Pulls that still wait when all whole clocks have been applied would wait for ever if a worker has left before that
  // clock.
  void check_waiting(std::size_t pulls) const {
    for (const int worker : left_) {
      const auto w = static_cast<std::size_t>(worker);
      if (pulls == 0 || !pushed_[w].empty()) continue;
      fail(
          ErrorCode::peer_lost,
          "Worker {} has left the servers after {} pushes, and {} pulls wait for later ones of all workers; all must push a "
          "table equally often.",
          worker, clocks_[w], pulls);
    }
  }
  const std::vector<std::int64_t>& clocks() const { return clocks_; }

 private:
  std::vector<std::int64_t> clocks_;
  std::vector<std::deque<Pushed>> pushed_;  // by worker
  std::vector<int> left_;
};

// The least number of updates that a pull at a clock may read.
inline std::int64_t least_version(const Consistency& consistency, std::int64_t clock) {
  return consistency.kind == Consistency::Kind::eventual ? 0 : std::max<std::int64_t>(0, clock - consistency.delay);
}

}  // namespace stretto
