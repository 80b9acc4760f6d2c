#pragma once
#include <array>
#include <bit>
#include <optional>

#include "collectives/plan/collective_contract.hpp"
#include "collectives/proof/verify_accesses.hpp"
#include "collectives/proof/verify_cells.hpp"
#include "collectives/proof/verify_layout.hpp"
#include "collectives/proof/verify_order.hpp"
#include "collectives/proof/verify_refused.hpp"
#include "collectives/proof/verify_steps.hpp"

namespace stretto {

// The effect of the steps on the memory of all ranks, out of place or in place. A cell stands for one element, and holds its
// number. If the collective reduces, it also holds which ranks have contributed to the element, and whether it was finished.
// The caller decides the order of the steps, which does not depend on where the buffers lie.
class Memory {
 public:
  // The plans and the contract must outlive it.
  Memory(const std::vector<Plan>& plans, const CollectiveContract& promise, bool in_place)
      : plans_(plans),
        promise_(promise),
        size_(static_cast<int>(plans.size())),
        contributors_(plans[0].request.size),
        in_place_(in_place),
        layout_(plans, promise, in_place),
        steps_(size_, promise.sums(), layout_),
        rank_order_(is_deterministic(plans[0].request.method.algorithm)) {
    fill_inputs();
  }
  Memory(const Memory&) = delete;  // steps_ refers to layout_
  Memory& operator=(const Memory&) = delete;

  bool in_place() const { return in_place_; }
  const Steps& steps() const { return steps_; }

  // Must be called before the first round if ranks touch each other's memory: accesses must then be in an order that the
  // clocks prove.
  void prove_order(const Clocks& clocks) {
    order_.emplace(clocks, layout_.cells());
    for (int rank = 0; rank < size_; ++rank) {
      for (const Buffer buffer : callers_and_scratch) order_->begin(rank, layout_.range_of(rank, buffer));
    }
  }

  // Lanes run independently, so none may write what another one touches. Each touched cell is marked with the lanes that
  // read or write it (the low bits) and that write it (the high bits). Plans of several lanes touch their own memory only.
  void check_lanes_apart(int rank) {
    static_assert(most_lanes <= 4, "a mark has 8 bits");
    lane_marks_.resize(layout_.cells());
    const std::vector<Lane>& lanes = plans_[rank].lanes;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      accesses_.clear();
      for (const Step& step : lanes[lane].steps) steps_.append_accesses(rank, step, accesses_);
      const unsigned others = 0xfU & ~(1U << lane);
      for (const Access& access : accesses_) {
        unsigned found = 0;
        const auto mark = static_cast<std::uint8_t>((access.writes ? 0x11U : 0x01U) << lane);
        for (std::int64_t cell = access.range.begin; cell < access.range.end; ++cell) {
          found |= lane_marks_[cell];
          lane_marks_[cell] |= mark;
        }
        const unsigned clash = (access.writes ? found : found >> 4) & others;
        demand(clash == 0, "Lanes {} and {} of rank {} touch the same memory.", std::countr_zero(clash), lane, rank);
      }
    }
  }

  // The steps of a round are concurrent, so none may write what another one touches.
  void begin_round(int rank, int lane, std::size_t round, const Step* first, const Step* last) {
    accesses_.clear();
    for (const Step* step = first; step != last; ++step) steps_.append_accesses(rank, *step, accesses_);
    sort_by_begin(accesses_);
    demand(!clash_within(accesses_), "Two steps of rank {} in round {} of lane {} touch the same memory at the same time.",
           rank, round, lane);
    if (!order_) return;
    for (const Access& access : accesses_) {
      if (const Order::Clash clash = access.writes ? order_->write(rank, access.range) : order_->read(rank, access.range)) {
        refuse_access(rank, access, clash);
      }
    }
  }

  // Performs a step that waits for no other rank.
  void work(int rank, const Step& step) {
    switch (step.kind) {
      case StepKind::copy: return copy(rank, layout_.cell_of(rank, step.source), rank, step);
      case StepKind::read: return copy(rank, layout_.cell_of(step.peer, step.source), rank, step);
      case StepKind::copy_to_all:
        return steps_.for_each_owner(rank, step,
                                     [&](int owner) { copy(rank, layout_.cell_of(step.peer, step.source), owner, step); });
      case StepKind::reduce: return reduce(rank, step);
      case StepKind::read_reduce: return reduce_all(rank, step);
      default: return pack_or_unpack(rank, step);
    }
  }

  // Performs a message whose send and receive have met.
  void arrive(int sender, const Step& send, int receiver, const Step& receive) {
    const std::int64_t arrives = layout_.cell_of(sender, send.source);
    if (receive.kind == StepKind::recv) return copy(sender, arrives, receiver, receive);
    const std::int64_t target = layout_.cell_of(receiver, receive.destination);
    add(receiver, layout_.cell_of(receiver, receive.source), arrives, target, receive.destination.count);
    if (receive.finishes) finish(receiver, target, receive.destination.count);
  }

  // Must be called when all plans are done.
  void check_output(int rank) const {
    const std::int64_t output = layout_.range_of(rank, Buffer::output).begin;
    std::int64_t begin = output;
    promise_.for_each_output_run(rank, [&](std::int64_t first, std::int64_t count) {
      if (!is_right(first, begin, count)) refuse_output(rank, first, begin, count, begin - output);
      begin += count;
    });
  }

  // When a rank's plan is done, the rank may use its own memory for anything, which counts as a write. Algorithms that touch
  // only the scratch of other ranks keep it after the end.
  void check_ending(int rank) {
    const Algorithm algorithm = plans_[rank].request.method.algorithm;
    const bool keeps_scratch = shares_memory(algorithm) && !touches_buffers(algorithm);
    for (const Buffer buffer : callers_and_scratch) {
      if (!order_ || (buffer == Buffer::scratch && keeps_scratch)) continue;
      if (const Order::Clash clash = order_->write(rank, layout_.range_of(rank, buffer))) {
        refuse("Rank {} may be done while rank {} still {} {}.", rank, clash.rank, clash.writes ? "writes" : "reads",
               layout_.text_of(clash.cell));
      }
    }
  }

  int most_quantizations() const {  // of any contribution to any output
    int most = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const Range output = layout_.range_of(rank, Buffer::output);
      for (std::int64_t cell = output.begin; cell < output.end; ++cell) most = std::max(most, cells_.quantizations(cell));
    }
    return most;
  }

 private:
  static constexpr std::array callers_and_scratch{Buffer::input, Buffer::output, Buffer::scratch};

  void fill_inputs() {
    const bool quantized = std::any_of(plans_.begin(), plans_.end(), [](const Plan& plan) {
      return std::any_of(plan.packed_counts.begin(), plan.packed_counts.end(), [](std::int64_t count) { return count > 0; });
    });
    cells_ = Cells(layout_.cells(), promise_.sums() ? contributors_ : 0, quantized);
    for (int rank = 0; rank < size_; ++rank) {
      const Range input = layout_.range_of(rank, Buffer::input);
      const std::int64_t first = promise_.first_input_element(rank);
      for (std::int64_t cell = input.begin; cell < input.end; ++cell) {
        cells_.set_original(cell, first + cell - input.begin, rank);
      }
    }
  }

  // The sender's cells arrive in the destination of a copy or recv.
  void copy(int sender, std::int64_t source, int receiver, const Step& step) {
    const auto [target, end] = layout_.range_of(receiver, step.destination);
    demand(cells_.written(source, end - target), "Rank {} passes on an element that was never written.", sender);
    cells_.copy(source, target, end - target);
  }

  void reduce(int rank, const Step& step) {
    const std::int64_t count = step.destination.count;
    const std::int64_t source = layout_.cell_of(rank, step.source);
    const std::int64_t target = layout_.cell_of(rank, step.destination);
    if (count == 0) return;
    // A single vector is not added to anything, but may be finished.
    if (step.source.count == count) take(rank, source, target, count);
    for (std::int64_t at = count; at < step.source.count; at += count) {
      add(rank, at == count ? source : target, source + at, target, count);
    }
    if (step.finishes) finish(rank, target, count);
  }

  // The sum is formed in the spare run, because its destination may be one of its sources.
  void reduce_all(int rank, const Step& step) {
    const std::int64_t count = step.destination.count;
    const std::int64_t sum = cells_.spare(count);
    const auto part_of = [&](int owner) { return layout_.cell_of(owner, Steps::part_of(owner, rank, step)); };
    take(rank, part_of(0), sum, count);
    for (int from = 1; from < size_; ++from) add(rank, sum, part_of(from), sum, count);
    if (step.finishes) finish(rank, sum, count);
    steps_.for_each_owner(rank, step, [&](int owner) { cells_.copy(sum, layout_.cell_of(owner, step.destination), count); });
  }

  void pack_or_unpack(int rank, const Step& step) {
    const auto [target, end] = layout_.range_of(rank, step.destination);
    const std::int64_t count = step.destination.count;
    const std::int64_t made = cells_.spare(count);
    for (int vector = 0; vector < step.vectors; ++vector) {
      const std::int64_t source = layout_.cell_of(rank, Steps::vector_of(step, vector));
      demand(cells_.written(source, count), "Rank {} packs or unpacks an element that was never written.", rank);
      demand(cells_.stand_for_elements(source, count), "Rank {} takes what fills up a group for an element.", rank);
      if (!Steps::adds_records(step.kind)) {
        cells_.copy(source, made, count);
      } else if (vector == 0) {
        take(rank, source, made, count);
      } else {
        add(rank, made, source, made, count);
      }
    }
    if (step.finishes) finish(rank, made, count);
    if (step.kind == StepKind::quantize || step.kind == StepKind::requantize) cells_.quantize(made, count);
    cells_.copy(made, target, count);
    for (std::int64_t cell = target + count; cell < end; ++cell) cells_.fill(cell);
  }

  // Starts sums with their first contribution.
  void take(int rank, std::int64_t source, std::int64_t target, std::int64_t count) {
    demand(cells_.written(source, count), "Rank {} reduces with an element that was never written.", rank);
    for (std::int64_t cell = source; cell < source + count; ++cell) {
      demand(!cells_.finished(cell), "Rank {} reduces element {} after it was finished.", rank, cells_.element(cell));
    }
    cells_.copy(source, target, count);
  }

  void add(int rank, std::int64_t a, std::int64_t b, std::int64_t target, std::int64_t count) {
    if (!cells_.can_add(a, b, count) || (rank_order_ && !cells_.in_rank_order(a, b, count))) {
      refuse_addition(rank, a, b, count);
    }
    cells_.add(a, b, target, count);
  }
  // Finds the first pair of cells that cannot be added.
  [[noreturn]] void refuse_addition(int rank, std::int64_t a, std::int64_t b, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      demand(cells_.written(a + i) && cells_.written(b + i), "Rank {} reduces with an element that was never written.",
             rank);
      const std::int64_t element = cells_.element(a + i);
      demand(element == cells_.element(b + i), "Rank {} adds element {} to element {}.", rank, cells_.element(b + i),
             element);
      demand(!cells_.finished(a + i) && !cells_.finished(b + i), "Rank {} reduces element {} after it was finished.", rank,
             element);
      demand(!cells_.overlap(a + i, b + i), "Rank {} counts a contribution to element {} twice.", rank, element);
      demand(!rank_order_ || cells_.in_rank_order(a + i, b + i, 1),
             "Rank {} adds contributions to element {} in another order than that of the ranks.", rank, element);
    }
    fail(ErrorCode::internal, "Rank {} cannot add {} elements, each of which it could.", rank, count);
  }

  void finish(int rank, std::int64_t begin, std::int64_t count) {
    for (std::int64_t cell = begin; cell < begin + count; ++cell) {
      demand(cells_.complete(cell), "Rank {} finishes element {}, which still lacks contributions.", rank,
             cells_.element(cell));
    }
    cells_.finish(begin, count);
  }

  // Whether a run of cells holds the elements from `first` on, and sums with all contributions.
  bool is_right(std::int64_t first, std::int64_t begin, std::int64_t count) const {
    if (!cells_.are_elements_from(first, begin, count)) return false;
    return !promise_.sums() || (cells_.complete(begin, count) && (contributors_ == 1 || cells_.all_finished(begin, count)));
  }
  // Finds the first wrong cell. index: of the run in the output.
  [[noreturn]] void refuse_output(int rank, std::int64_t first, std::int64_t begin, std::int64_t count,
                                  std::int64_t index) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t cell = begin + i;
      demand(cells_.written(cell), "Output element {} of rank {} is never written.", index + i, rank);
      demand(cells_.element(cell) == first + i, "Output element {} of rank {} is element {} instead of {}.", index + i, rank,
             cells_.element(cell), first + i);
      if (!promise_.sums()) continue;
      for (int contributor = 0; !cells_.complete(cell) && contributor < contributors_; ++contributor) {
        demand(cells_.holds(cell, contributor), "Output element {} of rank {} lacks the contribution of rank {}.", index + i,
               rank, contributor);
      }
      demand(contributors_ == 1 || cells_.finished(cell), "Output element {} of rank {} was never finished.", index + i,
             rank);
    }
    fail(ErrorCode::internal, "The output of rank {} is wrong, but none of its {} elements is.", rank, count);
  }

  [[noreturn]] void refuse_access(int rank, const Access& access, const Order::Clash& clash) const {
    const std::string text =
        fmt::format("Rank {} {} {}", rank, access.writes ? "writes" : "reads", layout_.text_of(clash.cell));
    if (clash.beginning) refuse("{}, which may not have begun.", text);
    refuse("{}, which rank {} may {} at the same time.", text, clash.rank, clash.writes ? "write" : "read");
  }

  const std::vector<Plan>& plans_;
  const CollectiveContract& promise_;
  int size_;
  int contributors_;  // ranks with a vector
  bool in_place_;
  Layout layout_;
  Steps steps_;
  bool rank_order_;  // the algorithm promises to form every sum in rank order
  Cells cells_;
  std::optional<Order> order_;            // set if ranks touch each other's memory
  std::vector<Access> accesses_;          // of one round, or of one lane
  std::vector<std::uint8_t> lane_marks_;  // by cell
};

}  // namespace stretto
