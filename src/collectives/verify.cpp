// A symbolic run of all ranks' plans. A cell stands for one element and holds what that element is made of: which global
// element it belongs to, and the set of ranks that have contributed to it. Messages are unbuffered: a send ends when its
// receive takes place.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <tuple>

#include "core/fail.hpp"
#include "stretto/plan.hpp"

namespace stretto {
namespace {

struct Refused {
  std::string sentence;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> sentence, Args&&... args) {
  if (!condition) throw Refused{fmt::format(sentence, std::forward<Args>(args)...)};
}

struct Extent {  // where a buffer lies in its rank's cells
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// What a collective promises: how large the buffers are, which element of the whole an element of a buffer is, and which
// outputs count.
struct Promise {
  Collective collective;
  int size;
  int root;
  std::int64_t count;

  bool gathers() const { return collective == Collective::all_gather; }
  bool scatters() const { return collective == Collective::reduce_scatter; }
  bool sums() const { return !gathers() && collective != Collective::broadcast; }
  std::int64_t inputs(int rank) const {
    if (collective == Collective::broadcast && rank != root) return 0;
    return scatters() ? count * size : count;
  }
  std::int64_t outputs(int rank) const {
    if (collective == Collective::reduce && rank != root) return 0;
    return gathers() ? count * size : count;
  }
  std::int64_t input_element(int rank, std::int64_t i) const { return gathers() ? rank * count + i : i; }
  std::int64_t output_element(int rank, std::int64_t i) const { return scatters() ? rank * count + i : i; }
  // The ranks that an element of an output must be made of: [first, last).
  std::pair<int, int> contributors(std::int64_t element) const {
    if (sums()) return {0, size};
    const int source = gathers() ? static_cast<int>(element / count) : root;
    return {source, source + 1};
  }
};

class Cells {
 public:
  Cells() = default;
  Cells(std::int64_t count, int size)
      : words_((size + 63) / 64), elements_(count, unwritten), sets_(static_cast<std::size_t>(count) * words_) {}

  void set_original(std::int64_t cell, std::int64_t element, int rank) {
    elements_[cell] = element;
    word(cell, rank / 64) |= std::uint64_t{1} << (rank % 64);
  }
  bool written(std::int64_t cell) const { return elements_[cell] != unwritten; }
  std::int64_t element(std::int64_t cell) const { return elements_[cell]; }
  // Whether it is made of exactly the ranks [first, last).
  bool made_of(std::int64_t cell, int first, int last) const {
    for (int w = 0; w < words_; ++w) {
      const int low = std::clamp(first - 64 * w, 0, 64);
      const int high = std::clamp(last - 64 * w, 0, 64);
      const std::uint64_t below_high = high == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << high) - 1;
      const std::uint64_t below_low = low == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << low) - 1;
      if (sets_[cell * words_ + w] != (below_high & ~below_low)) return false;
    }
    return true;
  }
  bool holds(std::int64_t cell, int rank) const { return (sets_[cell * words_ + rank / 64] >> (rank % 64) & 1U) != 0; }

  void assign(std::int64_t cell, const Cells& from, std::int64_t source) {
    elements_[cell] = from.elements_[source];
    std::copy_n(&from.sets_[source * words_], words_, &sets_[cell * words_]);
  }
  // cell = own with other added; false when a contribution would count twice.
  bool assign_sum(std::int64_t cell, std::int64_t own, const Cells& from, std::int64_t other) {
    bool once = true;
    for (int w = 0; w < words_; ++w) {
      const std::uint64_t a = sets_[own * words_ + w];
      const std::uint64_t b = from.sets_[other * words_ + w];
      once &= (a & b) == 0;
      sets_[cell * words_ + w] = a | b;
    }
    elements_[cell] = elements_[own];
    return once;
  }

 private:
  static constexpr std::int64_t unwritten = -1;
  std::uint64_t& word(std::int64_t cell, int w) { return sets_[cell * words_ + w]; }
  int words_ = 0;
  std::vector<std::int64_t> elements_;
  std::vector<std::uint64_t> sets_;
};

class Run {
 public:
  Run(const std::vector<Plan>& plans, bool in_place)
      : plans_(plans),
        promise_{plans[0].request.collective, static_cast<int>(plans.size()), plans[0].request.root, plans[0].request.count},
        cells_(plans.size()),
        extents_(plans.size()) {
    for (int rank = 0; rank < promise_.size; ++rank) lay_out(rank, in_place);
  }

  void check_all() {
    for (int rank = 0; rank < promise_.size; ++rank) {
      check_shape(rank);
      check_lanes_apart(rank);
      progress_.emplace_back(plans_[rank].lanes.size());
      for (int lane = 0; lane < lanes_of(rank); ++lane) ready_.emplace_back(rank, lane);
    }
    while (!ready_.empty()) {
      const auto [rank, lane] = ready_.front();
      ready_.pop_front();
      begin_round(rank, lane);
    }
    check_nobody_waits();
    for (int rank = 0; rank < promise_.size; ++rank) check_output(rank);
  }

 private:
  struct LaneProgress {
    std::size_t round = 0;  // the current one; rounds before it are over
    int open = 0;           // its sends and receives that have not taken place
  };
  struct Access {
    std::int64_t begin, end;
    bool writes;
    const Step* step;
  };
  using Direction = std::tuple<int, int, int>;  // sender, receiver, lane

  int lanes_of(int rank) const { return static_cast<int>(plans_[rank].lanes.size()); }

  void lay_out(int rank, bool in_place) {
    const std::int64_t inputs = promise_.inputs(rank);
    const std::int64_t outputs = promise_.outputs(rank);
    auto& [input, output, scratch] = extents_[rank];
    input = {0, inputs};
    output = {inputs, outputs};
    if (in_place) {
      const std::int64_t share = rank * promise_.count;
      input.begin = promise_.gathers() ? share : 0;
      output.begin = promise_.scatters() ? share : 0;
    }
    const std::int64_t user = std::max(input.begin + inputs, output.begin + outputs);
    scratch = {user, plans_[rank].scratch_count};
    cells_[rank] = Cells(user + scratch.count, promise_.size);
    for (std::int64_t i = 0; i < inputs; ++i) {
      cells_[rank].set_original(input.begin + i, promise_.input_element(rank, i), rank);
    }
  }

  std::int64_t cell_of(int rank, const Slice& slice) const {
    return extents_[rank][static_cast<std::size_t>(slice.buffer)].begin + slice.offset;
  }

  void check_slice(int rank, const Slice& slice) const {
    const std::int64_t room = extents_[rank][static_cast<std::size_t>(slice.buffer)].count;
    demand(slice.offset >= 0 && slice.count >= 0 && slice.offset + slice.count <= room,
           "Rank {} touches elements [{}, {}) of a buffer of {}.", rank, slice.offset, slice.offset + slice.count, room);
  }

  void check_shape(int rank) const {
    const Plan& plan = plans_[rank];
    demand(plan.request.rank == rank && plan.request.size == promise_.size &&
               plan.request.collective == promise_.collective && plan.request.count == promise_.count &&
               plan.request.root == promise_.root,
           "Rank {}'s plan is for another collective, group, count or root than rank 0's.", rank);
    for (const Lane& lane : plan.lanes) {
      demand(lane.steps.empty() || (!lane.round_ends.empty() && lane.round_ends.back() == lane.steps.size()),
             "Rank {} has steps that belong to no round.", rank);
      for (const Step& step : lane.steps) {
        const bool talks = step.kind != StepKind::copy;
        demand(!talks || (step.peer >= 0 && step.peer < promise_.size && step.peer != rank),
               "Rank {} has rank {} as its peer.", rank, step.peer);
        if (step.kind != StepKind::recv) check_slice(rank, step.source);
        if (step.kind != StepKind::send) check_slice(rank, step.destination);
        demand(step.kind == StepKind::send || step.kind == StepKind::recv || step.source.count == step.destination.count,
               "Rank {} combines {} elements with {}.", rank, step.source.count, step.destination.count);
      }
    }
  }

  void append_accesses(int rank, const Step& step, std::vector<Access>& accesses) const {
    const auto add = [&](const Slice& slice, bool writes) {
      const std::int64_t begin = cell_of(rank, slice);
      accesses.push_back({begin, begin + slice.count, writes, &step});
    };
    if (step.kind != StepKind::recv) add(step.source, false);
    if (step.kind != StepKind::send) add(step.destination, true);
  }

  static bool clash(const Access& a, const Access& b) {
    return a.step != b.step && (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
  }

  void check_lanes_apart(int rank) const {
    std::vector<std::vector<Access>> by_lane(lanes_of(rank));
    for (int lane = 0; lane < lanes_of(rank); ++lane) {
      for (const Step& step : plans_[rank].lanes[lane].steps) append_accesses(rank, step, by_lane[lane]);
      for (int other = 0; other < lane; ++other) {
        for (const Access& a : by_lane[lane]) {
          for (const Access& b : by_lane[other]) {
            demand(!clash(a, b), "Lanes {} and {} of rank {} touch the same memory.", other, lane, rank);
          }
        }
      }
    }
  }

  void begin_round(int rank, int lane) {
    LaneProgress& progress = progress_[rank][lane];
    const Lane& plan = plans_[rank].lanes[lane];
    if (progress.round == plan.round_ends.size()) return;
    const std::size_t begin = progress.round == 0 ? 0 : plan.round_ends[progress.round - 1];
    const std::size_t end = plan.round_ends[progress.round];

    std::vector<Access> accesses;
    for (std::size_t i = begin; i < end; ++i) append_accesses(rank, plan.steps[i], accesses);
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        demand(!clash(accesses[i], accesses[j]), "Two steps of rank {} in round {} touch the same memory at the same time.",
               rank, progress.round);
      }
    }

    // Counted first: a posted step may meet its partner at once.
    progress.open = 1;
    for (std::size_t i = begin; i < end; ++i) progress.open += plan.steps[i].kind != StepKind::copy ? 1 : 0;
    for (std::size_t i = begin; i < end; ++i) post(rank, lane, plan.steps[i]);
    close_one(rank, lane);
  }

  void close_one(int rank, int lane) {
    LaneProgress& progress = progress_[rank][lane];
    if (--progress.open > 0) return;
    ++progress.round;
    ready_.emplace_back(rank, lane);
  }

  void post(int rank, int lane, const Step& step) {
    if (step.kind == StepKind::copy) return move(rank, step.source, rank, step);
    const bool sends = step.kind == StepKind::send;
    const Direction direction = sends ? Direction{rank, step.peer, lane} : Direction{step.peer, rank, lane};
    auto& mine = sends ? sends_ : receives_;
    auto& theirs = sends ? receives_ : sends_;
    const auto partner = theirs.find(direction);
    if (partner == theirs.end()) {
      demand(mine.emplace(direction, &step).second, "Rank {} has two messages {} rank {} under way in one round.", rank,
             sends ? "to" : "from", step.peer);
      return;
    }
    const Step& other = *partner->second;
    theirs.erase(partner);
    const int sender = std::get<0>(direction);
    const int receiver = std::get<1>(direction);
    const Step& send = sends ? step : other;
    const Step& receive = sends ? other : step;
    demand(send.source.count == receive.destination.count, "Rank {} sends {} elements to rank {}, which expects {}.", sender,
           send.source.count, receiver, receive.destination.count);
    move(sender, send.source, receiver, receive);
    close_one(sender, lane);
    close_one(receiver, lane);
  }

  // The arrival of source's elements in the destination of a copy, recv or recv_reduce.
  void move(int sender, const Slice& source, int receiver, const Step& step) {
    Cells& to = cells_[receiver];
    const Cells& from = cells_[sender];
    const std::int64_t first = cell_of(sender, source);
    const std::int64_t target = cell_of(receiver, step.destination);
    for (std::int64_t i = 0; i < source.count; ++i) {
      demand(from.written(first + i), "Rank {} passes on an element that was never written.", sender);
      if (step.kind != StepKind::recv_reduce) {
        to.assign(target + i, from, first + i);
        continue;
      }
      const std::int64_t own = cell_of(receiver, step.source) + i;
      demand(to.written(own), "Rank {} reduces with an element that was never written.", receiver);
      demand(to.element(own) == from.element(first + i), "Rank {} adds element {} to element {}.", receiver,
             from.element(first + i), to.element(own));
      demand(to.assign_sum(target + i, own, from, first + i), "Rank {} counts a contribution to element {} twice.", receiver,
             to.element(own));
    }
  }

  void check_nobody_waits() const {
    for (int rank = 0; rank < promise_.size; ++rank) {
      for (int lane = 0; lane < lanes_of(rank); ++lane) {
        const std::size_t round = progress_[rank][lane].round;
        demand(round == plans_[rank].lanes[lane].round_ends.size(), "Rank {} waits forever in round {} of lane {}.", rank,
               round, lane);
      }
    }
  }

  void check_output(int rank) const {
    const Extent& output = extents_[rank][static_cast<std::size_t>(Buffer::output)];
    for (std::int64_t i = 0; i < output.count; ++i) {
      const std::int64_t cell = output.begin + i;
      const std::int64_t element = promise_.output_element(rank, i);
      demand(cells_[rank].written(cell), "Output element {} of rank {} is never written.", i, rank);
      demand(cells_[rank].element(cell) == element, "Output element {} of rank {} is element {} instead of {}.", i, rank,
             cells_[rank].element(cell), element);
      const auto [first, last] = promise_.contributors(element);
      if (cells_[rank].made_of(cell, first, last)) continue;
      for (int contributor = 0; contributor < promise_.size; ++contributor) {
        const bool wanted = contributor >= first && contributor < last;
        demand(cells_[rank].holds(cell, contributor) == wanted,
               "Output element {} of rank {} {} the contribution of rank {}.", i, rank, wanted ? "lacks" : "has",
               contributor);
      }
    }
  }

  const std::vector<Plan>& plans_;
  Promise promise_;
  std::vector<Cells> cells_;
  std::vector<std::array<Extent, 3>> extents_;  // by Buffer
  std::vector<std::vector<LaneProgress>> progress_;
  std::deque<std::pair<int, int>> ready_;
  std::map<Direction, const Step*> sends_;
  std::map<Direction, const Step*> receives_;
};

}  // namespace

std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place) {
  require(!plans.empty(), "There is no plan to verify.");
  require(plans[0].request.collective != Collective::send && plans[0].request.collective != Collective::recv,
          "A single message is no collective; verify() takes the plans of all ranks of one collective.");
  try {
    Run(plans, in_place).check_all();
    return std::nullopt;
  } catch (const Refused& refused) {
    return refused.sentence;
  }
}

}  // namespace stretto
