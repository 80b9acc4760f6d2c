#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/fail.hpp"
#include "stretto/server.hpp"

namespace stretto {

// What workers have pushed to some values, by clock, until the pushes of all workers can be applied together.
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
  // Of the oldest clock, in the order of workers: a repeated run adds them in the same order, whoever came first.
  std::vector<Pushed> take_whole_clock() {
    std::vector<Pushed> result;
    for (auto& of_worker : pushed_) {
      result.push_back(std::move(of_worker.front()));
      of_worker.pop_front();
    }
    return result;
  }
  const std::vector<std::int64_t>& clocks() const { return clocks_; }

 private:
  std::vector<std::int64_t> clocks_;
  std::vector<std::deque<Pushed>> pushed_;  // by worker
};

// The least number of updates that a pull at a clock may read.
inline std::int64_t least_version(const Consistency& consistency, std::int64_t clock) {
  return consistency.kind == Consistency::Kind::eventual ? 0 : std::max<std::int64_t>(0, clock - consistency.delay);
}

}  // namespace stretto
