#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stretto/stream.hpp"
#include "transport/wait.hpp"

namespace stretto {

// Decides which operations of one rank go first on its links. While an operation of a more urgent stream has bytes to send
// and moves, operations of less urgent streams hand no further pieces to their links (Transfer::held). Pieces that they have
// handed over continue, and so do their receives.
//
// This cannot deadlock, whatever the order in which ranks enter operations: an operation that has looked and moved nothing
// for some 20 ms holds no other one back. So an operation that waits for a rank that has not come yet, perhaps because that
// rank waits for an operation that is held here, lets the others go. Nor can an operation starve: one that has been held for
// 50 ms hands over a piece all the same. To its peers, a rank that holds a send looks like one whose link is slow for a
// while, and plans complete over slow links.
class Precedence {
 public:
  struct Bounds {  // in nanoseconds
    // An operation goes first for this time after it last moved bytes: three times what a piece of 256 KiB takes at 300
    // Mb/s, so that it does not lose its place between two pieces, nor while its thread waits for a core.
    std::int64_t patience = 20'000'000;
    // After this time an operation that is held hands over a piece: far below every timeout, and a small share of such a
    // link, a seventh. Longer than the patience, so that an operation that goes first and is stuck lets go before.
    std::int64_t longest_hold = 50'000'000;
  };
  // bell: the rank's, on which the threads of operations that are held sleep.
  Precedence(Bell& bell, const Bounds& bounds) : bell_(bell), bounds_(bounds) {}
  Precedence(const Precedence&) = delete;
  Precedence& operator=(const Precedence&) = delete;

 private:
  friend class OperationPrecedence;
  static constexpr int priorities = static_cast<int>(Priority::urgent) + 1;
  struct PriorityLevel {
    std::atomic<int> under_way = 0;
    std::atomic<int> go_first = 0;  // operations in flight that go first
  };
  bool anybody_below(Priority priority) const;
  bool anybody_goes_before(Priority priority) const;

  Bell& bell_;
  Bounds bounds_;
  std::array<PriorityLevel, priorities> levels_;
};

// One operation in flight, from its first byte to its last, in the thread that runs it.
class OperationPrecedence {
 public:
  OperationPrecedence(Precedence& all, Priority priority);
  ~OperationPrecedence();
  OperationPrecedence(const OperationPrecedence&) = delete;
  OperationPrecedence& operator=(const OperationPrecedence&) = delete;

  bool is_background() const { return priority_ == Priority::background; }
  // Call it before each look at all of the operation's links: decides whether the operation is held in that look. If it is,
  // the thread's next pause ends in time to ask again.
  void begin_look();
  // Whether the operation hands nothing over in this look; the same answer for all of its transfers. An operation that was
  // held for long is not held again until it has handed something over.
  bool held() const { return held_; }
  // Adds bytes that the operation still has to hand to links.
  void will_send(std::size_t bytes) { to_send_ += bytes; }
  // Subtracts bytes that it has handed to a link.
  void handed_over(std::size_t bytes);
  // Must be called when bytes of the operation were handed to a link, or have arrived.
  void moved();
  // Call it after each look at all of the operation's links. The operation lets others go when it has handed everything
  // over: their bytes queue behind its own, and do not slow down its receives. While it goes first, the thread's next pause
  // ends in time to let them go.
  void looked();
  std::size_t left_to_send() const { return to_send_; }

 private:
  void let_go();

  Precedence& all_;
  Priority priority_;
  std::size_t to_send_ = 0;
  bool goes_first_ = false;
  std::int64_t moved_at_ = 0;
  bool held_ = false;            // in this look
  std::int64_t held_since_ = 0;  // with nothing handed over since; 0: it is not held
};

}  // namespace stretto
