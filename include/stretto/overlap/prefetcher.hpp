#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "stretto/stream.hpp"

namespace stretto {

// Gathers the parameters of the next layers while the current one computes (ZeRO-3, Rajbhandari et al. 2020; the
// explicit prefetch of PyTorch's FSDP2), frees them after use, and never holds more units than the options allow. The
// units' functions decide what is gathered and how; ZeroUnit's functions fit.
//
//   prefetcher.begin_step();                  // the optimizer has written the shares: the first gathers begin
//   prefetcher.begin_use(layer);              // the layer's parameters are there, and the next gathers begin
//   ... compute with them ...
//   prefetcher.end_use(layer);                // the layer's parameters are no longer read
//   prefetcher.end_step();                    // nothing is gathered: the optimizer may write the shares
//
// Gathers begin in the order of the uses. The order and the options alone, never time, decide at which call a gather
// begins. So ranks that make the same uses in the same order start the same gathers in the same order. Without overlap
// the same gathers happen one by one; results are bitwise equal.
//
// Give it an urgent stream and a communicator of its own (Communicator::duplicate), so that gathers overtake sums of
// gradients on a background stream. A gather is hidden behind the `ahead` uses before it; the rest of its time is
// exposed. The price is the memory of most_live units.
//
// Only one thread may use an object. The units' functions are called in that thread, inside the calls here, and must
// stay callable until the destructor has returned, which waits for gathers in flight. After an exception the object
// cannot be used again.
class STRETTO_API Prefetcher {
 public:
  // Forward and backward may gather differently (ZeRO++'s secondary copy). A unit that is still there from forward is
  // not gathered again for backward.
  enum class Pass { forward, backward };
  struct Use {
    std::size_t unit = 0;
    Pass pass = Pass::forward;
    bool operator==(const Use&) const = default;
  };
  struct Unit {
    // Starts a gather on the stream. The parameters are there when the returned Work is done.
    std::function<Work(Pass, const Stream&)> gather;
    // Frees the parameters' memory.
    std::function<void()> release;
  };
  struct Options {
    int ahead = 1;        // number of next uses whose gathers are started while the current one computes; at least 1
    int most_live = 0;    // most units that are gathered or being gathered at a time; 0: ahead + 1
    bool overlap = true;  // false: each gather is done in begin_use(), in computation()
  };

  // order: the uses of a step. If it is empty, the order is learned: the first step runs without prefetch, and later
  // steps must make the same uses. Throws Error(invalid_argument) for a unit in the order that does not exist, and for
  // options that are not possible.
  Prefetcher(std::vector<Unit> units, std::vector<Use> order, Stream stream, const Options& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // From here to end_step(), the shares that the units gather must not change.
  void begin_step();
  // Starts the gathers of the next uses, up to most_live units, and blocks until this unit is gathered (on a GPU, makes
  // computation() wait). Uses may be nested. Throws if this is not the next use in the order, if the unit is in use
  // already, or if the units in use leave no room for it.
  void begin_use(std::size_t unit, Pass pass = Pass::forward);
  // Releases the unit, unless the next begin_use() would gather it again.
  void end_use(std::size_t unit);
  // Throws if a unit is in use, or if uses of the order are missing.
  void end_step();

  int live() const { return live_; }                        // number of units that are gathered or being gathered
  const std::vector<Use>& order() const { return order_; }  // as given, or learned in the first step

 private:
  struct State {
    Unit functions;
    bool live = false, in_use = false;
    Work gathered;
  };
  void gather(const Use& use, const Stream& stream);
  void gather_ahead();
  void release(State& state);
  bool stays(std::size_t unit) const;

  std::vector<State> units_;
  std::vector<Use> order_;
  Stream stream_;
  Options options_;
  bool learns_;
  bool in_step_ = false;
  std::size_t next_ = 0;  // index in order_ of the next use in this step
  int live_ = 0;
};

STRETTO_API const char* name(Prefetcher::Pass pass);

}  // namespace stretto
