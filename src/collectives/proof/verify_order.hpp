#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace stretto {

// What happens before what where ranks touch each other's memory, by vector clocks (Fidge 1988; Mattern 1989): a rank knows
// of so many signals of each of the others. Of two accesses to a cell by different ranks, one of them a write, the later
// rank must know of a signal that the earlier one gave after its access. A cell remembers its last write, and who has read
// it since. Whatever the owner does before the call counts as a write.
class Order {
 public:
  // With whose access another one is not in order.
  struct Clash {
    int rank = -1;  // nobody's
    bool writes = false;
    bool beginning = false;  // its owner may not have begun
    explicit operator bool() const { return rank >= 0; }
  };
  static constexpr std::int64_t most_signals = UINT8_MAX;

  Order() = default;
  Order(int ranks, std::int64_t cells)
      : ranks_(ranks),
        clocks_(static_cast<std::size_t>(ranks) * ranks),
        told_(ranks),
        writes_(cells),
        newest_read_(cells, none) {}

  void begin(int owner, std::int64_t cell) { writes_[cell] = {~owner, 0}; }

  std::int64_t signals(int rank) const { return clock(rank)[rank]; }
  void signal(int rank) {
    ++clock(rank)[rank];
    told_[rank].insert(told_[rank].end(), clock(rank), clock(rank) + ranks_);
  }
  // The peer has signalled that often.
  void hear(int rank, int peer, std::int64_t signals) {
    Count* const mine = clock(rank);
    if (mine[peer] >= signals) return;
    const Count* const theirs = &told_[peer][(signals - 1) * ranks_];
    std::transform(mine, mine + ranks_, theirs, mine, [](Count a, Count b) { return std::max(a, b); });
  }

  Clash read(int rank, std::int64_t cell) {
    if (const Clash clash = with_write(rank, cell)) return clash;
    std::int32_t& newest = newest_read_[cell];
    const Touch mine{rank, clock(rank)[rank]};
    if (newest != none && reads_[newest].by.rank == rank) {
      reads_[newest].by = mine;
    } else {
      reads_.push_back({mine, newest});
      newest = static_cast<std::int32_t>(reads_.size() - 1);
    }
    return {};
  }
  Clash write(int rank, std::int64_t cell) {
    if (const Clash clash = with_write(rank, cell)) return clash;
    for (std::int32_t at = newest_read_[cell]; at != none; at = reads_[at].before) {
      if (!follows(rank, reads_[at].by)) return {reads_[at].by.rank, false, false};
    }
    newest_read_[cell] = none;
    writes_[cell] = {rank, clock(rank)[rank]};
    return {};
  }

 private:
  using Count = std::uint8_t;  // of signals
  struct Touch {
    std::int32_t rank = 0;  // ~rank: its owner's beginning
    Count signals = 0;      // of that rank before it
  };
  struct Read {
    Touch by;
    std::int32_t before;  // of the same cell, in reads_
  };
  static constexpr std::int32_t none = -1;

  // The signals that a rank knows of, by the rank that gave them.
  Count* clock(int rank) { return &clocks_[static_cast<std::size_t>(rank) * ranks_]; }
  const Count* clock(int rank) const { return &clocks_[static_cast<std::size_t>(rank) * ranks_]; }

  bool follows(int rank, const Touch& touch) const {
    const int by = touch.rank < 0 ? ~touch.rank : touch.rank;
    return by == rank || clock(rank)[by] > touch.signals;
  }
  Clash with_write(int rank, std::int64_t cell) const {
    const Touch& last = writes_[cell];
    if (follows(rank, last)) return {};
    return {last.rank < 0 ? ~last.rank : last.rank, true, last.rank < 0};
  }

  int ranks_ = 0;
  std::vector<Count> clocks_;              // of all ranks, one after the other
  std::vector<std::vector<Count>> told_;   // by rank: its clock at each of its signals
  std::vector<Touch> writes_;              // by cell: the last
  std::vector<std::int32_t> newest_read_;  // by cell: since then, in reads_
  std::vector<Read> reads_;
};

}  // namespace stretto
