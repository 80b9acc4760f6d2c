#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace stretto {

// Vector clocks (Fidge 1988; Mattern 1989): how many signals of every other rank each rank knows of.
class Clocks {
 public:
  static constexpr std::int64_t most_signals = UINT8_MAX;

  explicit Clocks(int ranks) : ranks_(ranks), clocks_(static_cast<std::size_t>(ranks) * ranks), at_signal_(ranks) {}

  int ranks() const { return ranks_; }
  std::int64_t signals(int rank) const { return clock(rank)[rank]; }  // that the rank has given
  // Whether the rank knows of a signal that `other` gave after its first `signals`.
  bool knows_of_later(int rank, int other, std::int64_t signals) const { return clock(rank)[other] > signals; }

  void signal(int rank) {
    ++clock(rank)[rank];
    at_signal_[rank].insert(at_signal_[rank].end(), clock(rank), clock(rank) + ranks_);
  }
  // The rank has waited for the peer's signal of this number. It now knows of all signals that the peer knew of then.
  void wait(int rank, int peer, std::int64_t number) {
    Count* const mine = clock(rank);
    if (mine[peer] >= number) return;
    const Count* const theirs = &at_signal_[peer][(number - 1) * ranks_];
    std::transform(mine, mine + ranks_, theirs, mine, [](Count a, Count b) { return std::max(a, b); });
  }

 private:
  using Count = std::uint8_t;  // of signals
  Count* clock(int rank) { return &clocks_[static_cast<std::size_t>(rank) * ranks_]; }
  const Count* clock(int rank) const { return &clocks_[static_cast<std::size_t>(rank) * ranks_]; }

  int ranks_;
  std::vector<Count> clocks_;                  // of all ranks, one after the other
  std::vector<std::vector<Count>> at_signal_;  // by rank: its clock at each of its signals
};

}  // namespace stretto
