// A symbolic run of all ranks' plans. A cell stands for one element and holds what that element is made of: which global
// element it is and, where the collective reduces, which ranks have contributed to it and whether it was finished. Messages
// are unbuffered: a send ends when its receive takes place. Where ranks share memory, it is also proved that the order in
// which they are run here does not matter.
#include <algorithm>

#include "collectives/proof/collective_contract.hpp"
#include "collectives/proof/verify_accesses.hpp"
#include "collectives/proof/verify_cells.hpp"
#include "collectives/proof/verify_layout.hpp"
#include "collectives/proof/verify_refused.hpp"
#include "collectives/proof/verify_signals.hpp"
#include "collectives/proof/verify_steps.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

void check_requests(const std::vector<Plan>& plans) {
  const PlanRequest& first = plans[0].request;
  const int size = static_cast<int>(plans.size());
  const bool exchanges = first.collective == Collective::all_to_all;
  for (int rank = 0; rank < size; ++rank) {
    const PlanRequest& request = plans[rank].request;
    demand(request.rank == rank && request.size == size && request.collective == first.collective &&
               request.count == first.count && request.root == first.root && request.quantized == first.quantized &&
               request.quantized_result == first.quantized_result &&
               (exchanges ? request.counts.size() == first.counts.size() : request.counts == first.counts) &&
               (request.counts.empty() || request.counts.size() == plans.size()) &&
               request.receive_counts.size() == (exchanges ? request.counts.size() : 0),
           "Rank {}'s plan is for another collective, group, root or counts than rank 0's.", rank);
    for (int peer = 0; exchanges && !request.counts.empty() && peer < rank; ++peer) {
      const PlanRequest& other = plans[peer].request;
      demand(request.counts[peer] == other.receive_counts[rank] && other.counts[rank] == request.receive_counts[peer],
             "Ranks {} and {} send each other {} and {} elements, but expect {} and {}.", peer, rank, other.counts[rank],
             request.counts[peer], other.receive_counts[rank], request.receive_counts[peer]);
    }
  }
}

class Run {
 public:
  Run(const std::vector<Plan>& plans, bool in_place)
      : plans_(plans),
        size_(static_cast<int>(plans.size())),
        promise_(plans),
        layout_(plans, promise_, in_place),
        steps_(size_, promise_.sums(), layout_) {
    fill_inputs();
    for (int rank = 0; rank < size_; ++rank) {
      first_lane_.push_back(progress_.size());
      for (int lane = 0; lane < lanes_of(rank); ++lane) progress_.push_back({rank, lane});
      most_lanes_ = std::max(most_lanes_, lanes_of(rank));
    }
    posted_.resize(static_cast<std::size_t>(size_) * size_ * most_lanes_);
  }

  // Once all is checked.
  int most_quantizations() const {
    int most = 0;
    for (int rank = 0; rank < size_; ++rank) {
      const Range output = layout_.range_of(rank, Buffer::output);
      for (std::int64_t cell = output.begin; cell < output.end; ++cell) most = std::max(most, cells_.quantizations(cell));
    }
    return most;
  }

  void check_all() {
    for (int rank = 0; rank < size_; ++rank) {
      check_shape(rank);
      if (lanes_of(rank) > 1) check_lanes_apart(rank);
    }
    signals_.emplace(plans_, layout_);
    for (LaneProgress& lane : progress_) ready_.push_back(&lane);
    while (!ready_.empty()) {
      LaneProgress& lane = *ready_.back();
      ready_.pop_back();
      begin_round(lane);
    }
    for (const LaneProgress& lane : progress_) {
      demand(lane.round == plan_of(lane).round_ends.size(), "Rank {} waits forever in round {} of lane {}.", lane.rank,
             lane.round, lane.lane);
    }
    for (int rank = 0; rank < size_; ++rank) {
      check_output(rank);
      if (signals_->used()) signals_->check_ending(rank);
    }
  }

 private:
  struct LaneProgress {
    int rank;
    int lane;
    std::size_t round = 0;  // the current one; rounds before it are over
    int open = 0;           // its sends, receives and waits that have not taken place
  };

  int lanes_of(int rank) const { return static_cast<int>(plans_[rank].lanes.size()); }
  const Lane& plan_of(const LaneProgress& lane) const { return plans_[lane.rank].lanes[lane.lane]; }
  LaneProgress& progress_of(int rank, int lane) { return progress_[first_lane_[rank] + lane]; }

  void fill_inputs() {
    const bool quantized = std::any_of(plans_.begin(), plans_.end(), [](const Plan& plan) {
      return std::any_of(plan.packed_counts.begin(), plan.packed_counts.end(), [](std::int64_t count) { return count > 0; });
    });
    cells_ = Cells(layout_.cells() + 1, promise_.sums() ? size_ : 0, quantized);
    for (int rank = 0; rank < size_; ++rank) {
      const Range input = layout_.range_of(rank, Buffer::input);
      const std::int64_t first = promise_.first_input_element(rank);
      for (std::int64_t cell = input.begin; cell < input.end; ++cell) {
        cells_.set_original(cell, first + cell - input.begin, rank);
      }
    }
  }
  // For a sum on its way, behind all buffers: where it goes may be where it comes from.
  std::int64_t spare_cell() const { return layout_.cells(); }

  std::int64_t cell_of(int rank, const Slice& slice) const { return layout_.cell_of(rank, slice); }
  Range range_of(int rank, const Slice& slice) const { return layout_.range_of(rank, slice); }

  void check_shape(int rank) const {
    demand(lanes_of(rank) <= stretto::most_lanes, "Rank {} has {} lanes; a plan has at most {}.", rank, lanes_of(rank),
           stretto::most_lanes);
    for (const Lane& lane : plans_[rank].lanes) {
      demand((lane.steps.empty() || (!lane.round_ends.empty() && lane.round_ends.back() == lane.steps.size())) &&
                 std::is_sorted(lane.round_ends.begin(), lane.round_ends.end()),
             "Rank {} has steps that belong to no round.", rank);
      for (const Step& step : lane.steps) steps_.check(rank, step);
    }
    check_residuals(rank);
  }

  // Error state belongs to one step of the whole plan.
  void check_residuals(int rank) const {
    for (int hop = 0; hop < hops; ++hop) {
      std::vector<Access> accesses;
      for (const Lane& lane : plans_[rank].lanes) {
        for (const Step& step : lane.steps) {
          const bool leaves_out = step.kind == StepKind::quantize || step.kind == StepKind::requantize;
          if (!leaves_out || static_cast<int>(step.hop) != hop || step.destination.count == 0) continue;
          accesses.push_back({{step.residual, step.residual + step.destination.count}, true});
          demand(step.residual >= 0 && step.residual + step.destination.count <= plans_[rank].residual_counts[hop],
                 "Rank {} keeps errors [{}, {}) of its hop '{}', which has {}.", rank, step.residual,
                 step.residual + step.destination.count, name(step.hop), plans_[rank].residual_counts[hop]);
        }
      }
      std::sort(accesses.begin(), accesses.end(), by_begin);
      demand(!clash_within(accesses), "Two steps of rank {} keep their errors in the same place.", rank);
    }
  }

  void check_lanes_apart(int rank) const {
    std::vector<std::vector<Range>> touched;
    std::vector<std::vector<Range>> written;
    for (int lane = 0; lane < lanes_of(rank); ++lane) {
      std::vector<Access> accesses;
      for (const Step& step : plans_[rank].lanes[lane].steps) steps_.append_accesses(rank, step, accesses);
      std::sort(accesses.begin(), accesses.end(), by_begin);
      touched.push_back(merged(accesses, false));
      written.push_back(merged(accesses, true));
      for (int other = 0; other < lane; ++other) {
        demand(!meet(touched[lane], written[other]) && !meet(written[lane], touched[other]),
               "Lanes {} and {} of rank {} touch the same memory.", other, lane, rank);
      }
    }
  }

  void begin_round(LaneProgress& progress) {
    const Lane& lane = plan_of(progress);
    if (progress.round == lane.round_ends.size()) return;
    const std::size_t begin = progress.round == 0 ? 0 : lane.round_ends[progress.round - 1];
    const std::size_t end = lane.round_ends[progress.round];

    accesses_.clear();
    progress.open = 1;  // for this function; and all are counted first, since a posted step may meet its partner at once
    for (std::size_t i = begin; i < end; ++i) {
      steps_.append_accesses(progress.rank, lane.steps[i], accesses_);
      if (Steps::waits(lane.steps[i].kind)) ++progress.open;
    }
    std::sort(accesses_.begin(), accesses_.end(), by_begin);
    demand(!clash_within(accesses_), "Two steps of rank {} in round {} of lane {} touch the same memory at the same time.",
           progress.rank, progress.round, progress.lane);
    if (signals_->used()) {
      signals_->tell(progress.rank, progress.round, lane.steps.data() + begin, lane.steps.data() + end,
                     [&](int rank) { close_one(progress_of(rank, 0)); });
      for (const Access& access : accesses_) signals_->order(progress.rank, access);
    }

    for (std::size_t i = begin; i < end; ++i) post(progress, lane.steps[i]);
    close_one(progress);
  }

  void close_one(LaneProgress& progress) {
    if (--progress.open > 0) return;
    ++progress.round;
    ready_.push_back(&progress);
  }

  void post(LaneProgress& progress, const Step& step) {
    const int rank = progress.rank;
    switch (step.kind) {
      case StepKind::copy: return copy(rank, cell_of(rank, step.source), rank, step);
      case StepKind::reduce: return reduce(rank, step);
      case StepKind::read: return copy(rank, cell_of(step.peer, step.source), rank, step);
      case StepKind::read_reduce: return reduce_all(rank, step);
      case StepKind::quantize:
      case StepKind::dequantize:
      case StepKind::dequantize_reduce:
      case StepKind::requantize: return pack_or_unpack(rank, step);
      case StepKind::copy_to_all:
        return steps_.for_each_owner(rank, step,
                                     [&](int owner) { copy(rank, cell_of(step.peer, step.source), owner, step); });
      case StepKind::signal: return;  // before all others
      case StepKind::wait:
        if (signals_->hear(rank, step.peer)) close_one(progress);
        return;
      default: break;
    }
    const bool sends = step.kind == StepKind::send;
    const int sender = sends ? rank : step.peer;
    const int receiver = sends ? step.peer : rank;
    const Step*& partner = posted_[(static_cast<std::size_t>(sender) * size_ + receiver) * most_lanes_ + progress.lane];
    if (partner == nullptr) {
      partner = &step;
      return;
    }
    demand((partner->kind == StepKind::send) != sends, "Rank {} has two messages {} rank {} under way in one round.", rank,
           sends ? "to" : "from", step.peer);
    const Step& send = sends ? step : *partner;
    const Step& receive = sends ? *partner : step;
    partner = nullptr;
    demand(send.source.count == receive.destination.count, "Rank {} sends {} elements to rank {}, which expects {}.", sender,
           send.source.count, receiver, receive.destination.count);
    demand(send.source.format == receive.destination.format, "Rank {} sends {} to rank {}, which expects {}.", sender,
           text_of(send.source.format), receiver, text_of(receive.destination.format));
    const std::int64_t arrives = cell_of(sender, send.source);
    if (receive.kind == StepKind::recv) {
      copy(sender, arrives, receiver, receive);
    } else {
      const std::int64_t target = cell_of(receiver, receive.destination);
      add(receiver, cell_of(receiver, receive.source), arrives, target, receive.destination.count);
      if (receive.finishes) finish(receiver, range_of(receiver, receive.destination));
    }
    close_one(progress);
    close_one(progress_of(step.peer, progress.lane));
  }

  // The arrival of a sender's cells in the destination of a copy or recv.
  void copy(int sender, std::int64_t source, int receiver, const Step& step) {
    const auto [target, end] = range_of(receiver, step.destination);
    for (std::int64_t i = 0; i < end - target; ++i) {
      demand(cells_.written(source + i), "Rank {} passes on an element that was never written.", sender);
      cells_.copy(source + i, target + i);
    }
  }

  void reduce(int rank, const Step& step) {
    const std::int64_t count = step.destination.count;
    const std::int64_t source = cell_of(rank, step.source);
    const std::int64_t target = cell_of(rank, step.destination);
    if (count == 0) return;
    // A single vector is not added to anything, but may be finished.
    for (std::int64_t i = 0; step.source.count == count && i < count; ++i) take(rank, source + i, target + i);
    for (std::int64_t at = count; at < step.source.count; at += count) {
      add(rank, at == count ? source : target, source + at, target, count);
    }
    if (step.finishes) finish(rank, range_of(rank, step.destination));
  }

  // The first contribution to a sum.
  void take(int rank, std::int64_t source, std::int64_t target) {
    demand(cells_.written(source), "Rank {} reduces with an element that was never written.", rank);
    demand(!cells_.finished(source), "Rank {} reduces element {} after it was finished.", rank, cells_.element(source));
    cells_.copy(source, target);
  }

  void add(int rank, std::int64_t a, std::int64_t b, std::int64_t target, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      demand(cells_.written(a + i) && cells_.written(b + i), "Rank {} reduces with an element that was never written.",
             rank);
      const std::int64_t element = cells_.element(a + i);
      demand(element == cells_.element(b + i), "Rank {} adds element {} to element {}.", rank, cells_.element(b + i),
             element);
      demand(!cells_.finished(a + i) && !cells_.finished(b + i), "Rank {} reduces element {} after it was finished.", rank,
             element);
      demand(cells_.add(a + i, b + i, target + i), "Rank {} counts a contribution to element {} twice.", rank, element);
    }
  }

  // An element after the other, since a sum may take the place of what it is made of.
  void reduce_all(int rank, const Step& step) {
    for (std::int64_t i = 0; i < step.destination.count; ++i) {
      take(rank, cell_of(0, step.source) + i, spare_cell());
      for (int from = 1; from < size_; ++from) add(rank, spare_cell(), cell_of(from, step.source) + i, spare_cell(), 1);
      if (step.finishes) finish(rank, {spare_cell(), spare_cell() + 1});
      steps_.for_each_owner(rank, step, [&](int owner) { cells_.copy(spare_cell(), cell_of(owner, step.destination) + i); });
    }
  }

  static std::string text_of(QuantizedFormat format) {
    return format == QuantizedFormat::none ? "elements" : fmt::format("records of {}", name(format));
  }

  // An element after the other, as its vectors have it.
  void pack_or_unpack(int rank, const Step& step) {
    const auto [target, end] = range_of(rank, step.destination);
    const bool packs = step.kind == StepKind::quantize || step.kind == StepKind::requantize;
    for (std::int64_t i = 0; i < step.destination.count; ++i) {
      for (int vector = 0; vector < step.vectors; ++vector) {
        const std::int64_t source = cell_of(rank, Steps::vector_of(step, vector)) + i;
        demand(cells_.written(source), "Rank {} packs or unpacks an element that was never written.", rank);
        demand(!cells_.fills(source), "Rank {} takes what fills up a group for an element.", rank);
        if (!Steps::adds_records(step.kind)) {
          cells_.copy(source, spare_cell());
        } else if (vector == 0) {
          take(rank, source, spare_cell());
        } else {
          add(rank, spare_cell(), source, spare_cell(), 1);
        }
      }
      if (step.finishes) finish(rank, {spare_cell(), spare_cell() + 1});
      if (packs) cells_.quantize(spare_cell());
      cells_.copy(spare_cell(), target + i);
    }
    for (std::int64_t cell = target + step.destination.count; cell < end; ++cell) cells_.fill(cell);
  }

  void finish(int rank, const Range& range) {
    for (std::int64_t cell = range.begin; cell < range.end; ++cell) {
      demand(cells_.complete(cell), "Rank {} finishes element {}, which still lacks contributions.", rank,
             cells_.element(cell));
      cells_.finish(cell);
    }
  }

  void check_output(int rank) const {
    const std::int64_t begin = layout_.range_of(rank, Buffer::output).begin;
    std::int64_t cell = begin;
    promise_.for_each_output_run(rank, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t element = first; element < first + count; ++element, ++cell) {
        demand(cells_.written(cell), "Output element {} of rank {} is never written.", cell - begin, rank);
        demand(cells_.element(cell) == element, "Output element {} of rank {} is element {} instead of {}.", cell - begin,
               rank, cells_.element(cell), element);
        if (promise_.sums()) check_sum(rank, cell, cell - begin);
      }
    });
  }

  void check_sum(int rank, std::int64_t cell, std::int64_t i) const {
    for (int contributor = 0; !cells_.complete(cell) && contributor < size_; ++contributor) {
      demand(cells_.holds(cell, contributor), "Output element {} of rank {} lacks the contribution of rank {}.", i, rank,
             contributor);
    }
    demand(size_ == 1 || cells_.finished(cell), "Output element {} of rank {} was never finished.", i, rank);
  }

  const std::vector<Plan>& plans_;
  int size_;
  CollectiveContract promise_;
  Layout layout_;
  Steps steps_;
  std::optional<Signals> signals_;  // once the plans' shapes are checked
  Cells cells_;
  std::vector<LaneProgress> progress_;   // of all lanes of all ranks
  std::vector<std::size_t> first_lane_;  // of a rank in progress_
  int most_lanes_ = 0;
  std::vector<const Step*> posted_;  // by sender, receiver and lane: the step that waits for its partner
  std::vector<LaneProgress*> ready_;
  std::vector<Access> accesses_;  // of one round
};

void check_collective(const std::vector<Plan>& plans) {
  require(!plans.empty(), "There is no plan to verify.");
  const Collective collective = plans[0].request.collective;
  require(collective != Collective::send && collective != Collective::recv,
          "A single message is no collective; verify() takes the plans of all ranks of one collective.");
}

}  // namespace

int most_quantizations(const std::vector<Plan>& plans) {
  check_collective(plans);
  try {
    check_requests(plans);
    Run run(plans, false);
    run.check_all();
    return run.most_quantizations();
  } catch (const Refused& refused) {
    fail(ErrorCode::invalid_argument, "{}", refused.sentence);
  }
}

std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place) {
  check_collective(plans);
  const Collective collective = plans[0].request.collective;
  // The library runs barriers in place.
  require(!in_place || can_be_in_place(collective) || collective == Collective::barrier, "{} has no in-place form.",
          name(collective));
  try {
    check_requests(plans);
    Run(plans, in_place).check_all();
    return std::nullopt;
  } catch (const Refused& refused) {
    return refused.sentence;
  }
}

}  // namespace stretto
