// A symbolic run of all ranks' plans. A cell stands for one element and holds what that element is made of: which global
// element it is and, where the collective reduces, which ranks have contributed to it and whether it was finished. Messages
// are unbuffered: a send ends when its receive takes place.
#include <algorithm>
#include <array>

#include "collectives/promise.hpp"
#include "collectives/verify_accesses.hpp"
#include "collectives/verify_cells.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

struct Refused {
  std::string sentence;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) throw Refused{fmt::format(sentence, std::forward<Args>(args)...)};
}

void check_requests(const std::vector<Plan>& plans) {
  const PlanRequest& first = plans[0].request;
  const int size = static_cast<int>(plans.size());
  const bool exchanges = first.collective == Collective::all_to_all;
  for (int rank = 0; rank < size; ++rank) {
    const PlanRequest& request = plans[rank].request;
    demand(request.rank == rank && request.size == size && request.collective == first.collective &&
               request.count == first.count && request.root == first.root &&
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
      : plans_(plans), size_(static_cast<int>(plans.size())), promise_(plans), layouts_(plans.size()) {
    lay_out(in_place);
    for (int rank = 0; rank < size_; ++rank) {
      first_lane_.push_back(progress_.size());
      for (int lane = 0; lane < lanes_of(rank); ++lane) progress_.push_back({rank, lane});
      most_lanes_ = std::max(most_lanes_, lanes_of(rank));
    }
    posted_.resize(static_cast<std::size_t>(size_) * size_ * most_lanes_);
  }

  void check_all() {
    for (int rank = 0; rank < size_; ++rank) {
      check_shape(rank);
      if (lanes_of(rank) > 1) check_lanes_apart(rank);
    }
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
    for (int rank = 0; rank < size_; ++rank) check_output(rank);
  }

 private:
  struct Extent {  // where a buffer lies in the cells
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };
  struct LaneProgress {
    int rank;
    int lane;
    std::size_t round = 0;  // the current one; rounds before it are over
    int open = 0;           // its sends and receives that have not taken place
  };

  int lanes_of(int rank) const { return static_cast<int>(plans_[rank].lanes.size()); }
  const Lane& plan_of(const LaneProgress& lane) const { return plans_[lane.rank].lanes[lane.lane]; }
  LaneProgress& progress_of(int rank, int lane) { return progress_[first_lane_[rank] + lane]; }

  void lay_out(bool in_place) {
    std::int64_t end = 0;
    for (int rank = 0; rank < size_; ++rank) {
      auto& [input, output, scratch] = layouts_[rank];
      input = {end, promise_.inputs(rank)};
      output = {end + input.count, promise_.outputs(rank)};
      if (in_place) {
        input.begin = end + promise_.input_begin_in_place(rank);
        output.begin = end + promise_.output_begin_in_place(rank);
      }
      scratch = {std::max(input.begin + input.count, output.begin + output.count), plans_[rank].scratch_count};
      end = scratch.begin + scratch.count;
    }
    cells_ = Cells(end, promise_.sums() ? size_ : 0);
    for (int rank = 0; rank < size_; ++rank) {
      const Extent& input = extent(rank, Buffer::input);
      const std::int64_t first = promise_.first_input_element(rank);
      for (std::int64_t i = 0; i < input.count; ++i) cells_.set_original(input.begin + i, first + i, rank);
    }
  }

  const Extent& extent(int rank, Buffer buffer) const { return layouts_[rank][static_cast<std::size_t>(buffer)]; }
  std::int64_t cell_of(int rank, const Slice& slice) const { return extent(rank, slice.buffer).begin + slice.offset; }
  Range range_of(int rank, const Slice& slice) const {
    const std::int64_t begin = cell_of(rank, slice);
    return {begin, begin + slice.count};
  }

  void check_slice(int rank, const Slice& slice) const {
    const std::int64_t room = extent(rank, slice.buffer).count;
    demand(slice.offset >= 0 && slice.count >= 0 && slice.offset + slice.count <= room,
           "Rank {} touches elements [{}, {}) of a buffer of {}.", rank, slice.offset, slice.offset + slice.count, room);
  }

  void check_shape(int rank) const {
    demand(lanes_of(rank) <= stretto::most_lanes, "Rank {} has {} lanes; a plan has at most {}.", rank, lanes_of(rank),
           stretto::most_lanes);
    for (const Lane& lane : plans_[rank].lanes) {
      demand((lane.steps.empty() || (!lane.round_ends.empty() && lane.round_ends.back() == lane.steps.size())) &&
                 std::is_sorted(lane.round_ends.begin(), lane.round_ends.end()),
             "Rank {} has steps that belong to no round.", rank);
      for (const Step& step : lane.steps) check_step(rank, step);
    }
  }

  void check_step(int rank, const Step& step) const {
    const bool talks = step.kind != StepKind::copy && step.kind != StepKind::reduce;
    const bool adds = step.kind == StepKind::recv_reduce || step.kind == StepKind::reduce;
    demand(!talks || (step.peer >= 0 && step.peer < size_ && step.peer != rank), "Rank {} has rank {} as its peer.", rank,
           step.peer);
    demand(!adds || promise_.sums(), "Rank {} reduces, but the collective only moves elements.", rank);
    demand(adds || !step.finishes, "Rank {} finishes a step that does not reduce.", rank);
    if (step.kind != StepKind::recv) check_slice(rank, step.source);
    if (step.kind == StepKind::send) return;
    check_slice(rank, step.destination);
    demand(step.destination.buffer != Buffer::input, "Rank {} writes to its input.", rank);
    if (step.kind == StepKind::recv) return;
    const std::int64_t vectors = step.destination.count == 0 ? 0 : step.source.count / step.destination.count;
    demand(step.source.count == vectors * step.destination.count && (vectors == 1 || step.kind == StepKind::reduce),
           "Rank {} combines {} elements with {}.", rank, step.source.count, step.destination.count);
    const Range from = range_of(rank, step.source);
    const Range to = range_of(rank, step.destination);
    demand(from.begin == to.begin || from.end <= to.begin || to.end <= from.begin,
           "Rank {} reads memory that the same step writes elsewhere.", rank);
  }

  // What a step touches. Its own source may be where its destination is; what is left of the source lies apart.
  void append_accesses(int rank, const Step& step, std::vector<Access>& accesses) const {
    const auto add = [&](Range range, bool writes) {
      if (range.begin < range.end) accesses.push_back({range, writes});
    };
    Range from{};
    Range to{};
    if (step.kind != StepKind::recv) from = range_of(rank, step.source);
    if (step.kind != StepKind::send) to = range_of(rank, step.destination);
    if (step.kind == StepKind::copy && from.begin == to.begin) return;  // onto itself, in place: it is left out
    if (to.begin < to.end && from.begin == to.begin) from.begin = to.end;
    add(from, false);
    add(to, true);
  }

  void check_lanes_apart(int rank) const {
    std::vector<std::vector<Range>> touched;
    std::vector<std::vector<Range>> written;
    for (int lane = 0; lane < lanes_of(rank); ++lane) {
      std::vector<Access> accesses;
      for (const Step& step : plans_[rank].lanes[lane].steps) append_accesses(rank, step, accesses);
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
      append_accesses(progress.rank, lane.steps[i], accesses_);
      if (lane.steps[i].kind != StepKind::copy && lane.steps[i].kind != StepKind::reduce) ++progress.open;
    }
    std::sort(accesses_.begin(), accesses_.end(), by_begin);
    demand(!clash_within(accesses_), "Two steps of rank {} in round {} of lane {} touch the same memory at the same time.",
           progress.rank, progress.round, progress.lane);

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
    if (step.kind == StepKind::copy) return copy(rank, cell_of(rank, step.source), rank, step);
    if (step.kind == StepKind::reduce) return reduce(rank, step);
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
    const std::int64_t arrives = cell_of(sender, send.source);
    if (receive.kind == StepKind::recv) {
      copy(sender, arrives, receiver, receive);
    } else {
      const std::int64_t target = cell_of(receiver, receive.destination);
      add(receiver, cell_of(receiver, receive.source), arrives, target, receive.destination.count);
      if (receive.finishes) finish(receiver, receive.destination);
    }
    close_one(progress);
    close_one(progress_of(step.peer, progress.lane));
  }

  // The arrival of a sender's cells in the destination of a copy or recv.
  void copy(int sender, std::int64_t source, int receiver, const Step& step) {
    const std::int64_t target = cell_of(receiver, step.destination);
    for (std::int64_t i = 0; i < step.destination.count; ++i) {
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
    for (std::int64_t i = 0; step.source.count == count && i < count; ++i) {
      demand(cells_.written(source + i), "Rank {} reduces with an element that was never written.", rank);
      demand(!cells_.finished(source + i), "Rank {} reduces element {} after it was finished.", rank,
             cells_.element(source + i));
      cells_.copy(source + i, target + i);
    }
    for (std::int64_t at = count; at < step.source.count; at += count) {
      add(rank, at == count ? source : target, source + at, target, count);
    }
    if (step.finishes) finish(rank, step.destination);
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

  void finish(int rank, const Slice& slice) {
    const std::int64_t first = cell_of(rank, slice);
    for (std::int64_t cell = first; cell < first + slice.count; ++cell) {
      demand(cells_.complete(cell), "Rank {} finishes element {}, which still lacks contributions.", rank,
             cells_.element(cell));
      cells_.finish(cell);
    }
  }

  void check_output(int rank) const {
    const std::int64_t begin = extent(rank, Buffer::output).begin;
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
  Promise promise_;
  Cells cells_;
  std::vector<std::array<Extent, 3>> layouts_;  // by Buffer
  std::vector<LaneProgress> progress_;          // of all lanes of all ranks
  std::vector<std::size_t> first_lane_;         // of a rank in progress_
  int most_lanes_ = 0;
  std::vector<const Step*> posted_;  // by sender, receiver and lane: the step that waits for its partner
  std::vector<LaneProgress*> ready_;
  std::vector<Access> accesses_;  // of one round
};

}  // namespace

std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place) {
  require(!plans.empty(), "There is no plan to verify.");
  const Collective collective = plans[0].request.collective;
  require(collective != Collective::send && collective != Collective::recv,
          "A single message is no collective; verify() takes the plans of all ranks of one collective.");
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
