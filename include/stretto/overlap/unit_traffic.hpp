#pragma once
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "stretto/overlap/unit_store.hpp"

namespace stretto {

// Decides when units are gathered and summed, while the caller computes with them. Where a unit lies is its store's matter.
//
//   traffic.begin_step();
//   for each microbatch:
//     traffic.begin_use(unit, Pass::forward);   // the values are there
//     traffic.end_use(unit);
//     traffic.begin_use(unit, Pass::backward);  // the values are there, and gradients to add to
//     traffic.end_use(unit);
//     traffic.end_microbatch();
//   traffic.finish_sums();                      // each rank has the sums of its shares
//   for each unit in forward_order():
//     ... update the unit's share ...
//     traffic.updated(unit);                    // the new values travel while the caller goes on
//
// Values. With ZeroStage::values a unit is gathered before a use, while the `prefetch` units used before it are computed
// with, and released when it is not among the next `prefetch` units (the explicit prefetch of PyTorch's FSDP2). The units in
// use and `prefetch` others are the most that are there at a time. At other stages values are gathered once a step, after
// updated(), and the first use waits for them (Megatron-LM's --overlap-param-gather). Uses that read no values
// (reads_values) neither gather nor wait, and do not count among the next `prefetch`.
//
// Gradients are summed when their last use of the step has ended, or of the microbatch from ZeroStage::gradients on, while
// backward goes on (PyTorch DDP; Li et al. 2020). From ZeroStage::gradients on, at most prefetch + 1 units of gradients are
// in flight at a time; on the host, another use blocks until the oldest is done. (On a GPU computation() waits for it
// instead, and the memory of units that the host has enqueued ahead adds to that.)
//
// The order of uses is learned by learn(), or else in the first step, in which every gather waits for its use, and every sum
// for the end of its microbatch: that step holds the whole gradients at every stage. Later steps must make the same uses.
// The order and the options alone, never time, decide at which call an operation starts. So ranks that make the same uses
// start the same operations in the same order. Without overlap the same operations run one by one in computation(). Neither
// overlap nor prefetch changes the bits of a result.
//
// A unit whose store is not ordered (UnitStore::ordered) is used in any order, any number of times or not at all, by each
// rank as it likes as long as ranks agree on its gathers. It is gathered when a use needs it and released behind the use.
// Its sum starts at the end of each microbatch from ZeroStage::gradients on, and else in finish_sums(), on all ranks: a rank
// that has not used it adds zeros.
//
// Uses outside a step gather what is not there, without prefetch, and free it again; all ranks must make them.
//
// Only the thread that computes may use an object. After an exception it cannot be used again. The destructor waits for
// operations in flight.
class STRETTO_API UnitTraffic {
 public:
  struct Options {
    int prefetch = 1;     // units; 0: each gather is waited for in full
    bool overlap = true;  // false: gathers and sums run in computation(), and nothing is prefetched
    // ZeroStage::values: values stay from the first use in a step until the last, instead of being gathered for each
    // microbatch: a pipeline uses a stage's units for many microbatches in turn. Units that are gathered alone do not stay.
    bool keep_through_step = false;
    // Units whose ranks do not make the same uses, such as those on two stages of a pipeline. Their sums start in
    // finish_sums(), behind all others, and they come first in forward_order(). Below ZeroStage::gradients only.
    std::vector<std::size_t> summed_last = {};
    // 1: finish_sums() waits for the sums of the step before only, and those of its own step stay in flight. Between steps,
    // the caller must give all units other gradients to add to (ShardedUnit::exchange_gradients). At ZeroStage::gradients,
    // as many sums are in flight at a time as there are such units, whatever prefetch says.
    int delay = 0;
  };
  // Give gathers an urgent stream and sums a background one, so that gathers overtake sums. The stores must outlive the
  // object.
  UnitTraffic(const std::vector<UnitStore*>& units, Stream gathers, Stream sums, const Options& options);
  UnitTraffic(const std::vector<UnitStore*>& units, Stream gathers, Stream sums)
      : UnitTraffic(units, std::move(gathers), std::move(sums), Options()) {}
  ~UnitTraffic();
  UnitTraffic(const UnitTraffic&) = delete;
  UnitTraffic& operator=(const UnitTraffic&) = delete;

  // Learns the order of uses before the first step. `step` must make the uses of a step, with an end_microbatch() for each
  // microbatch, and nothing else. Kernels on tensors and communication of the calling thread are left out meanwhile, so it
  // costs little more than to allocate the step's memory, of which no more is needed than in later steps. The contents of
  // tensors are meaningless.
  void learn(const std::function<void()>& step);
  // Gradients become zeros, or unset (UnitStore::zero_unset), and the first gathers begin. From here to finish_sums(),
  // shares must not change.
  void begin_step();
  // Uses of several units, and of one unit, may be nested. Throws Error(invalid_argument) if another use comes next in the
  // order. On a GPU, computation() waits instead of the caller. backward_input needs the values only, backward_weight the
  // gradients only. The store learns the number of the microbatch. No call allocates memory in a step whose order is known,
  // unless it starts an operation.
  void begin_use(std::size_t unit, Pass pass, int microbatch = 0);
  // The unit's values and gradients may no longer be there afterwards.
  void end_use(std::size_t unit);
  void end_microbatch();
  // Starts what is left and blocks until all sums are done; on a GPU, computation() waits. Throws if a unit is in use, or if
  // uses of the order are missing.
  void finish_sums();
  // Blocks until the sums that finish_sums() has left in flight are done; on a GPU, computation() waits.
  void wait_for_sums();
  // Calls f in each step whose order is known when the last sum of a unit has begun, in sum_order(); an empty f: nothing.
  // Throws Error(invalid_argument) for a second f.
  void on_last_sum(std::function<void(std::size_t unit)> f);
  // The units with gradients but for Options::summed_last and those that are not ordered, in the order of their last sums.
  const std::vector<std::size_t>& sum_order() const { return sum_order_; }
  // Tasks that the stream gets from now on begin when the last sum of the unit that has begun is done.
  void wait_for_sum(std::size_t unit, const Stream& stream) const;
  // With a delay, in a step: tasks that the stream gets from now on begin when the sums of the step before are done.
  void wait_for_late_sums(const Stream& stream) const;
  // The rank has written its share of the unit, or all of a unit that is whole (set_whole). Below ZeroStage::values, the
  // gather of a unit that is not whole begins.
  void updated(std::size_t unit);
  // Blocks until values in flight have arrived; on a GPU, computation() waits.
  void wait_for_values();

  // ZeroStage::none: which units' gradients are gathered whole behind their sums, so that every rank updates all of them.
  // The others are updated by share, and their values gathered. All are whole at first. May be called between steps; a unit
  // that was not whole must not become whole, since the optimizer's state outside the share is stale.
  void set_whole(std::vector<bool> units);
  bool is_whole(std::size_t unit) const { return whole_[unit]; }

  // Options::summed_last, and then the units in the order of their first use in a step; in their own order until a step has
  // been learned.
  const std::vector<std::size_t>& forward_order() const { return forward_order_; }
  int live() const;  // the units whose values are there or on their way
  // Whether uses add gradients, in a step that has been learned; of a unit that is not ordered they may.
  bool adds_gradients_to(std::size_t unit) const { return units_[unit].gets_gradients || !units_[unit].store->ordered(); }

  // Times of the last step in seconds by now_seconds(). needed: when the first use of the unit began; ready: when its last
  // gradient was there, before its last sum. sum, gather: how long the last sum and the gather of gradients or values took;
  // 0 if there was none. On a GPU the call blocks until they are done.
  struct Times {
    double needed = 0, ready = 0, sum = 0, gather = 0;
  };
  Times times(std::size_t unit) const;

 private:
  struct Use {
    std::size_t unit;
    Pass pass;
    int microbatch;
    bool sums = false;  // the unit's gradients are summed when this use has ended
    bool last = false;  // the step's last use of the unit that reads values
    bool last_sum = false;
    std::size_t end = 0;  // of uses that add gradients: which of their ends comes first, from 1
    // Indices in uses_ of the next use that reads values, this one included; and of the next of another unit than this one.
    std::size_t next_read = 0, next_of_others = 0;
  };
  struct State {
    UnitStore* store;
    bool summed_last = false;
    bool gets_gradients = false;  // of a use in a step
    int in_use = 0;
    bool used = false;                // in this step
    bool reading = false;             // while in use: a use has begun that reads values
    std::size_t latest_read = 0;      // index in uses_ of the latest use that has begun and reads values
    std::size_t latest_backward = 0;  // the same of uses that add gradients
    bool has_gradients = false;       // added to since the last sum
    bool arriving = false;            // values are in flight, and nobody has waited for them
    Work gathered, summed, whole_gradients;
    Work late_summed, late_whole_gradients;  // with a delay, those of the step before
    Work needed, ready;                      // places in computation()
  };
  static bool keeps_values(const State& state) { return state.store->stage() != ZeroStage::values; }
  void gather(State& state);
  void gather_ahead();
  void arrive(State& state);
  void note_use(std::size_t unit, Pass pass, int microbatch);
  const std::vector<std::size_t>& next_reads(int count);
  bool is_upcoming(std::size_t unit) const;
  void learn_sums(ZeroStage from);
  void learn_order();
  void sum_unordered(bool between_microbatches);
  void start_sum(std::size_t unit);
  void limit_sums();

  std::vector<State> units_;
  Stream gathers_, sums_;
  Options options_;
  std::vector<bool> whole_;
  std::vector<Use> uses_;  // of a step
  std::vector<std::size_t> forward_order_, sum_order_;
  std::function<void(std::size_t)> on_last_sum_;
  std::vector<std::size_t> upcoming_;  // of next_reads()
  std::vector<Work> in_flight_;        // sums that nobody has waited for, the oldest first
  std::size_t late_in_flight_ = 0;     // of them, those of the step before
  std::size_t most_in_flight_;         // when another unit's gradients begin; see limit_sums()
  std::size_t next_ = 0;               // index in uses_
  std::size_t ends_ = 0;               // Use::end, so far
  bool in_step_ = false, knows_order_ = false;
  bool learning_ = false;  // in learn()
};

}  // namespace stretto
