#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace stretto_torch {

// The order in which a rank runs the collectives of a group. It must be the same on all ranks.
//
// When a callback of a future runs depends on when the operation ends, which differs from rank to rank. So what a callback
// starts cannot take its place when it is started. It takes the place at which the program took the future, as if the
// operation had been done by then and the callback had run there: which is what happens where it was done by then.
//
// A place is a list of numbers, ordered as words are: [4] is the fourth event (a call, or the taking of a future) outside
// callbacks; where that took a future, [4, 2] is the second event inside the callbacks of that future. While callbacks run,
// operations behind them wait: those that the callbacks may still start come first.
//
// Not safe for threads: Lane has a mutex for it.
class CallOrder {
 public:
  using Place = std::vector<std::uint64_t>;

  // While it lives, the calling thread runs these callbacks. One at a time on a thread.
  class Callbacks {
   public:
    Callbacks(const CallOrder& order, const Place& place);
    ~Callbacks();
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;

   private:
    friend class CallOrder;
    const CallOrder& order_;
    const Place& place_;
    std::uint64_t last_ = 0;
  };

  // Of an operation that this thread starts now.
  Place take_place();
  // Of callbacks, from the moment at which this thread takes the future of an operation until the callbacks have returned.
  Place open(const Place& operation);
  void close(const Place& callbacks);

  // Whether callbacks that come before it have still to return.
  bool must_wait(const Place& operation) const;
  // No operation waits any longer for callbacks that come before this one: they have taken too long.
  void pass(const Place& operation);
  // This thread is going to wait for the operation, which therefore must not wait for callbacks that this thread runs.
  void wait_for(const Place& operation);
  // Whether this thread runs callbacks that have taken too long: what they start may have another place on other ranks.
  bool is_late() const;

 private:
  enum class Holds { later_operations, nothing, nothing_since_late };
  static bool is_inside(const Place& place, const Place& callbacks);
  Callbacks* own() const;

  std::uint64_t last_ = 0;
  std::map<Place, Holds> open_;
};

}  // namespace stretto_torch
