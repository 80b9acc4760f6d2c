#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "collectives/proof/verify_accesses.hpp"
#include "collectives/proof/verify_clocks.hpp"

namespace stretto {

// The order of accesses if ranks touch each other's memory. If two ranks access one cell and one of the accesses is a write,
// the later rank must know of a signal that the earlier rank gave after its access. A cell remembers its last write, and the
// ranks that have read it since. The owner's use of its memory before the call counts as a write.
class Order {
 public:
  // An earlier access by another rank that is not in order with the access in question.
  struct Clash {
    std::int64_t cell = 0;
    int rank = -1;  // -1: there is no clash
    bool writes = false;
    bool beginning = false;  // the owner may not have begun the call
    explicit operator bool() const { return rank >= 0; }
  };

  // The clocks must outlive this object, and must hold each rank's knowledge at the time of its access.
  Order(const Clocks& clocks, std::int64_t cells) : clocks_(clocks), writes_(cells), readers_(cells, none) {}

  void begin(int owner, const Range& run) {
    std::fill(writes_.begin() + run.begin, writes_.begin() + run.end, Touch{owner, before_the_call});
  }

  Clash read(int rank, const Range& run) {
    std::int32_t before = unknown;
    std::int32_t with_this = none;
    for (std::int64_t cell = run.begin; cell < run.end; ++cell) {
      if (!follows(rank, writes_[cell])) return clash_with_write(cell);
      if (readers_[cell] != before) {
        before = readers_[cell];
        with_this = with_reader(before, rank);
      }
      readers_[cell] = with_this;
    }
    return {};
  }
  Clash write(int rank, const Range& run) {
    const Touch mine{rank, signals(rank)};
    std::int32_t checked = none;
    for (std::int64_t cell = run.begin; cell < run.end; ++cell) {
      if (!follows(rank, writes_[cell])) return clash_with_write(cell);
      for (std::int32_t at = readers_[cell] != checked ? readers_[cell] : none; at != none; at = lists_[at].rest) {
        if (!follows(rank, lists_[at].first)) return {cell, lists_[at].first.rank, false, false};
      }
      checked = readers_[cell];
      readers_[cell] = none;
      writes_[cell] = mine;
    }
    return {};
  }

 private:
  struct Touch {
    std::int32_t rank = 0;
    std::int32_t signals = 0;  // of that rank before it
  };
  // Lists of readers share their tails, because most cells of a run have the same list.
  struct Readers {
    Touch first;
    std::int32_t rest;  // in lists_
  };
  static constexpr std::int32_t before_the_call = -1;
  static constexpr std::int32_t none = -1;
  static constexpr std::int32_t unknown = -2;

  std::int32_t signals(int rank) const { return static_cast<std::int32_t>(clocks_.signals(rank)); }
  // Before a rank's first signal other ranks know nothing of it, not even that it has begun.
  bool follows(int rank, const Touch& touch) const {
    return touch.rank == rank || clocks_.knows_of_later(rank, touch.rank, std::max(touch.signals, 0));
  }
  Clash clash_with_write(std::int64_t cell) const {
    return {cell, writes_[cell].rank, true, writes_[cell].signals == before_the_call};
  }
  // A rank's later read replaces its earlier one: accesses that follow the later read also follow the earlier one.
  std::int32_t with_reader(std::int32_t list, int rank) {
    const std::int32_t rest = list != none && lists_[list].first.rank == rank ? lists_[list].rest : list;
    lists_.push_back({{rank, signals(rank)}, rest});
    return static_cast<std::int32_t>(lists_.size() - 1);
  }

  const Clocks& clocks_;
  std::vector<Touch> writes_;          // by cell: the last
  std::vector<std::int32_t> readers_;  // by cell: since then, in lists_
  std::vector<Readers> lists_;
};

}  // namespace stretto
