#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "server/parts/keyed_rows.hpp"
#include "stretto/server.hpp"

namespace stretto {

// Keeps what workers push to a part, by clock, until the pushes of all workers can be applied together.
//
// Clocks are by part, and so as many as parts times workers, whatever is pushed. Vector clocks of ranges (Li et al. 2014)
// are for pushes of any range, which divide a range of equal clocks; here a push has all of its table, or counts for all
// keys of a sparse one, so that the elements of a part always have one clock, and a part is what moves to another server, or
// is copied, with it.
class PushClocks {
 public:
  explicit PushClocks(int workers)
      : clocks_(static_cast<std::size_t>(workers)), pushed_(clocks_.size()), presence_(clocks_.size(), Presence::here) {}

  // Returns whether the push is the worker's next one: one that has come before comes again when servers have been lost.
  // Throws if others are missing before it.
  bool count(int worker, std::int64_t clock) {
    std::int64_t& own = clocks_[static_cast<std::size_t>(worker)];
    require(clock <= own, "Worker {} pushes clock {} behind {}; pushes come once each, in order.", worker, clock, own - 1);
    if (clock < own) return false;
    ++own;
    return true;
  }
  void keep(int worker, KeyedRows pushed) { pushed_[static_cast<std::size_t>(worker)].push_back(std::move(pushed)); }
  // Has pushes of all workers that are not lost.
  bool has_whole_clock() const {
    bool any = false;
    for (std::size_t w = 0; w < pushed_.size(); ++w) {
      if (pushed_[w].empty() && presence_[w] != Presence::lost) return false;
      any = any || !pushed_[w].empty();
    }
    return any;
  }
  // Returns the pushes of the oldest clock in the order of workers, so that a repeated run adds them in the same order.
  std::vector<KeyedRows> take_whole_clock() {
    std::vector<KeyedRows> result;
    for (auto& of_worker : pushed_) {
      if (of_worker.empty()) continue;
      result.push_back(std::move(of_worker.front()));
      of_worker.pop_front();
    }
    return result;
  }
  std::deque<KeyedRows> take_kept(int worker) { return std::exchange(pushed_[static_cast<std::size_t>(worker)], {}); }
  std::size_t kept() const {
    std::size_t pushes = 0;
    for (const auto& of_worker : pushed_) pushes += of_worker.size();
    return pushes;
  }
  std::int64_t clock(int worker) const { return clocks_[static_cast<std::size_t>(worker)]; }
  // Another server has applied the worker's pushes below this clock.
  void advance(int worker, std::int64_t clock) {
    std::int64_t& own = clocks_[static_cast<std::size_t>(worker)];
    own = std::max(own, clock);
  }
  std::int64_t least() const {  // of the workers that are not lost
    std::int64_t least = *std::ranges::max_element(clocks_);
    for (std::size_t w = 0; w < clocks_.size(); ++w) {
      if (presence_[w] != Presence::lost) least = std::min(least, clocks_[w]);
    }
    return least;
  }
  void leave(int worker) { presence_[static_cast<std::size_t>(worker)] = Presence::left; }  // it pushes no more
  void lose(int worker) { presence_[static_cast<std::size_t>(worker)] = Presence::lost; }   // and nobody waits for it
  bool is_lost(int worker) const { return presence_[static_cast<std::size_t>(worker)] == Presence::lost; }
  bool any_has_left() const { return std::ranges::find(presence_, Presence::left) != presence_.end(); }
  struct Left {
    int worker = 0;
    std::int64_t pushes = 0;
  };
  // The worker that has left after the fewest pushes, if fewer than these: what needs as many of all workers never comes.
  std::optional<Left> left_before(std::int64_t pushes) const {
    std::optional<Left> result;
    for (std::size_t w = 0; w < clocks_.size(); ++w) {
      if (presence_[w] != Presence::left || clocks_[w] >= (result ? result->pushes : pushes)) continue;
      result = {static_cast<int>(w), clocks_[w]};
    }
    return result;
  }

 private:
  enum class Presence : std::uint8_t { here, left, lost };
  std::vector<std::int64_t> clocks_;           // by worker: pushes
  std::vector<std::deque<KeyedRows>> pushed_;  // by worker
  std::vector<Presence> presence_;
};

// The least number of updates that a pull at a clock may read.
inline std::int64_t least_version(const Consistency& consistency, std::int64_t clock) {
  return consistency.kind == Consistency::Kind::eventual ? 0 : std::max<std::int64_t>(0, clock - consistency.delay);
}

}  // namespace stretto
