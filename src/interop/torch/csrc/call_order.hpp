#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace stretto_torch {

// The order in which a rank runs the collectives of a group. It must be the same on all ranks.
//
// A callback of a future runs when the operation ends, and that moment differs from rank to rank. So an operation that a
// callback starts cannot take its place in the order at its start. It takes the place at which the program took the future,
// as if the operation had been done by then and its callback had run there. If the operation was done by then, this is what
// happens.
//
// A place is a list of numbers, in lexicographic order. An event is a call, or the taking of a future. [4] is the fourth
// event outside callbacks. If event 4 took a future, [4, 2] is the second event inside the callbacks of that future. While
// callbacks run, operations behind them wait, because operations that the callbacks may still start come first.
//
// Not thread-safe: Lane guards it by a mutex.
class CallOrder {
 public:
  using Place = std::vector<std::uint64_t>;

  // While this object lives, the calling thread runs the callbacks at `place`. A thread has at most one of these objects.
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

  // Returns the place of an operation that this thread starts now.
  Place take_place();
  // open() returns the place of the operation's callbacks. It must be called when this thread takes the future of the
  // operation, and close() after the callbacks have returned.
  Place open(const Place& operation);
  void close(const Place& callbacks);

  // Whether callbacks that come before `operation` have not returned yet.
  bool must_wait(const Place& operation) const;
  // From now on no operation waits for the callbacks before `operation`: they have taken too long.
  void pass(const Place& operation);
  // Must be called before this thread waits for `operation`, which then does not wait for callbacks that this thread runs.
  void wait_for(const Place& operation);
  // Whether this thread runs callbacks that have taken too long. Operations that they start may have another place on other
  // ranks.
  bool is_late() const;

 private:
  enum class Holds { later_operations, nothing, nothing_since_late };
  static bool is_inside(const Place& place, const Place& callbacks);
  Callbacks* own() const;

  std::uint64_t last_ = 0;
  std::map<Place, Holds> open_;
};

}  // namespace stretto_torch
