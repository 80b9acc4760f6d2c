#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stretto/stream.hpp"
#include "transport/wait.hpp"

namespace stretto {

// Who goes first on the links of one rank: while an operation of a more urgent stream has bytes to send and moves, those of
// less urgent ones hand no further pieces to their links (Transfer::held). What they have handed over goes on, and so do
// their receives.
//
// This cannot deadlock, in whatever order ranks get into operations: an operation that has looked and moved nothing for a
// few tens of milliseconds holds nobody. One that waits for a rank that has not come yet, perhaps because that one waits for
// what is held here, so lets go. Nor can it starve: who has been held for long hands a piece over all the same. To its peers
// a rank that holds a send is one whose link is slow for a while, and plans end over slow links.
class Precedence {
 public:
  struct Bounds {  // in nanoseconds
    // For how long one goes first that finds nothing to move: thrice what a piece of 256 KiB takes at 300 Mb/s, so that it
    // does not lose its place between two pieces. While its thread waits for a core, nothing is found.
    std::int64_t patience = 20'000'000;
    // After which time whoever is held hands over a piece: nobody's timeout is near then, and the share is a small one, of
    // such a link a seventh. Longer than the patience, so that who goes first and is stuck lets go before.
    std::int64_t longest_hold = 50'000'000;
  };
  // The bell is the rank's, on which those who are held sleep.
  Precedence(Bell& bell, const Bounds& bounds) : bell_(bell), bounds_(bounds) {}
  Precedence(const Precedence&) = delete;
  Precedence& operator=(const Precedence&) = delete;

  // One under way, from its first byte to its last, in the thread that runs it.
  class Operation {
   public:
    Operation(Precedence& all, Priority priority);
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

    bool is_background() const { return priority_ == Priority::background; }
    // Before each look at all of its links: decides whether it is held in that look. If so, its thread's next pause ends in
    // time to ask again.
    void begin_look();
    // Whether it hands nothing over in this look: one answer for all that share the operation. Who has been held for long is
    // not, until something has been handed over.
    bool held() const { return held_; }
    // It has so many more bytes to hand to links.
    void will_send(std::size_t bytes) { to_send_ += bytes; }
    // So many of them have been.
    void handed_over(std::size_t bytes);
    // Bytes of it have been handed to a link, or have arrived.
    void moved();
    // After each look at all of its links. It lets others go when all of its own is handed over: they do not slow down what
    // it receives, and queue behind what it has sent. Where it goes first, its thread's next pause ends in time to let them
    // go.
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

 private:
  static constexpr int priorities = static_cast<int>(Priority::urgent) + 1;
  struct Level {
    std::atomic<int> under_way = 0;
    std::atomic<int> go_first = 0;  // of these
  };
  bool anybody_below(Priority priority) const;
  bool anybody_goes_before(Priority priority) const;

  Bell& bell_;
  Bounds bounds_;
  std::array<Level, priorities> levels_;
};

}  // namespace stretto
