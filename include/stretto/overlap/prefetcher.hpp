#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "stretto/stream.hpp"

namespace stretto {

// Gathers the parameters of the next layers while the current one computes (ZeRO-3, Rajbhandari et al. 2020; the explicit
// prefetch of PyTorch's FSDP2), frees them after use, and never holds more of them than was asked for. What is gathered, and
// how, the units say; ZeroUnit's gathers fit.
//
//   prefetcher.begin_step();                  // the shares are as the optimizer left them: the first gathers begin
//   prefetcher.begin_use(layer);              // its parameters are there, and the next gathers on their way
//   ... compute with them ...
//   prefetcher.end_use(layer);                // nobody reads them any more
//   prefetcher.end_step();                    // nothing is gathered: the optimizer may change the shares
//
// Gathers begin in the order of the uses, and which begin at which call depends on that order and the options, never on
// time; so all ranks of a group, who make the same uses in the same order, make the same gathers in the same order. Without
// overlap the same gathers happen one by one, and results are bitwise equal.
//
// Give it an urgent stream and a communicator that nobody else uses (Communicator::duplicate): a gather then overtakes the
// sums of gradients on a background stream. Exposed is what is left of a gather's time when the `ahead` uses before it have
// computed; the price is the memory of most_live units.
//
// One thread uses it. The units' functions are called in that thread, inside the calls here; they must be callable until
// this object has gone, which waits for gathers under way. After an exception it cannot be used again.
class STRETTO_API Prefetcher {
 public:
  // Forward and backward may gather differently (ZeRO++'s second copy). What is still there from forward is not gathered
  // again for backward.
  enum class Pass { forward, backward };
  struct Use {
    std::size_t unit = 0;
    Pass pass = Pass::forward;
    bool operator==(const Use&) const = default;
  };
  struct Unit {
    // Starts a gather on the stream; the parameters can be used when its Work is done.
    std::function<Work(Pass, const Stream&)> gather;
    // Gives the parameters' memory back.
    std::function<void()> release;
  };
  struct Options {
    int ahead = 1;        // uses for which gathers are under way while another one computes; at least 1
    int most_live = 0;    // units that are gathered, or being gathered, at a time; 0: ahead + 1
    bool overlap = true;  // false: each gather begins where its use does, in the calling thread
  };

  // order: the uses of a step. If it is empty, it is learned: the first step runs without prefetch, and the next ones have
  // to make the same uses. Throws Error(invalid_argument) for a unit in the order that does not exist, and options that
  // cannot be.
  Prefetcher(std::vector<Unit> units, std::vector<Use> order, Stream stream, const Options& options);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // From here until end_step() the shares that the units gather stay as they are.
  void begin_step();
  // Blocks until the unit is gathered; gathers for the next uses have begun, as far as most_live lets them. Uses may be
  // nested. Throws for a use that is not the next one in the order, a unit that is in use already, and where the units in
  // use leave no room for it.
  void begin_use(std::size_t unit, Pass pass = Pass::forward);
  // Releases the unit, unless it is one of those that the next begin_use() would gather.
  void end_use(std::size_t unit);
  // Throws if a unit is in use, or uses of the order have not been made.
  void end_step();

  int live() const { return live_; }                        // units that are gathered or being gathered
  const std::vector<Use>& order() const { return order_; }  // given, or learned by the first end_step()

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
  std::size_t next_ = 0;  // use of this step
  int live_ = 0;
};

STRETTO_API const char* name(Prefetcher::Pass pass);

}  // namespace stretto
