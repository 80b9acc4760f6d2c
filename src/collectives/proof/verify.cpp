// A symbolic run of all ranks' plans: memory holds the contributors of each element (verify_memory.hpp). Messages are
// unbuffered: a send ends when its receive takes place. If ranks share memory, the proof also shows that the order in which
// steps run here does not matter.
#include <algorithm>
#include <array>
#include <memory>

#include "collectives/proof/root_proofs.hpp"
#include "collectives/proof/verify_memory.hpp"
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
    demand(request.rank == rank && ranks_of(request) == size && request.servers == first.servers &&
               request.collective == first.collective && request.count == first.count && request.root == first.root &&
               request.quantized == first.quantized && request.quantized_result == first.quantized_result &&
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

// A run of all ranks' plans, in every requested form at once: whether the ranks' steps fit together does not depend on where
// the buffers lie.
class Run {
 public:
  explicit Run(const std::vector<Plan>& plans) : plans_(plans), size_(static_cast<int>(plans.size())), promise_(plans) {
    for (int rank = 0; rank < size_; ++rank) {
      first_lane_.push_back(progress_.size());
      for (int lane = 0; lane < lanes_of(rank); ++lane) progress_.push_back({rank, lane});
      most_lanes_ = std::max(most_lanes_, lanes_of(rank));
    }
    posted_.resize(static_cast<std::size_t>(size_) * size_ * most_lanes_);
  }

  // Must precede check_all().
  void add_form(bool in_place) { forms_.push_back(std::make_unique<Memory>(plans_, promise_, in_place)); }

  // Throws Refused.
  void check_all() {
    bool share_memory = false;
    for (int rank = 0; rank < size_; ++rank) share_memory |= check_shape(rank);
    if (share_memory) {
      signals_.emplace(plans_);
      for_each_form([&](Memory& form) { form.prove_order(signals_->clocks()); });
    }
    for (int rank = 0; rank < size_; ++rank) {
      if (lanes_of(rank) > 1) for_each_form([&](Memory& form) { form.check_lanes_apart(rank); });
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
    for_each_form([&](Memory& form) {
      for (int rank = 0; rank < size_; ++rank) {
        form.check_output(rank);
        form.check_ending(rank);
      }
    });
  }

  // Valid after check_all() has thrown: the form in which the fault shows; out of place if it shows in all forms.
  const char* form_of_fault() const { return at_work_ != nullptr && at_work_->in_place() ? "in place" : "out of place"; }
  int most_quantizations() const { return forms_.front()->most_quantizations(); }  // after check_all()

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

  template <class Visit>
  void for_each_form(Visit visit) {
    for (const auto& form : forms_) {
      at_work_ = form.get();
      visit(*form);
    }
    at_work_ = nullptr;
  }

  // Returns whether any step of the rank accesses other ranks' memory.
  bool check_shape(int rank) {
    bool between = false;
    bool quantized = false;
    demand(lanes_of(rank) <= most_lanes, "Rank {} has {} lanes; a plan has at most {}.", rank, lanes_of(rank), most_lanes);
    for (const Lane& lane : plans_[rank].lanes) {
      demand((lane.steps.empty() || (!lane.round_ends.empty() && lane.round_ends.back() == lane.steps.size())) &&
                 std::is_sorted(lane.round_ends.begin(), lane.round_ends.end()),
             "Rank {} has steps that belong to no round.", rank);
      for (const Step& step : lane.steps) {
        forms_.front()->steps().check(rank, step);
        between |= between_memories(step.kind);
        quantized |= quantizes(step.kind);
      }
      for_each_form([&](Memory& form) {
        for (const Step& step : lane.steps) form.steps().check_overlap(rank, step);
      });
    }
    if (quantized) check_residuals(rank);
    return between;
  }

  // Each element of the error state must belong to one step of the whole plan.
  void check_residuals(int rank) const {
    std::array<std::vector<Access>, hops> accesses;
    for (const Lane& lane : plans_[rank].lanes) {
      for (const Step& step : lane.steps) {
        const bool leaves_out = step.kind == StepKind::quantize || step.kind == StepKind::requantize;
        if (!leaves_out || step.destination.count == 0) continue;
        const auto hop = static_cast<std::size_t>(step.hop);
        const Range range{step.residual, step.residual + step.destination.count};
        accesses[hop].push_back({range, true});
        if (range.begin < 0 || range.end > plans_[rank].residual_counts[hop]) {
          refuse("Rank {} keeps errors [{}, {}) of its hop '{}', which has {}.", rank, range.begin, range.end,
                 name(step.hop), plans_[rank].residual_counts[hop]);
        }
      }
    }
    for (std::vector<Access>& its : accesses) {
      sort_by_begin(its);
      demand(!clash_within(its), "Two steps of rank {} keep their errors in the same place.", rank);
    }
  }

  void begin_round(LaneProgress& progress) {
    const Lane& lane = plan_of(progress);
    if (progress.round == lane.round_ends.size()) return;
    const Step* const first = lane.steps.data() + (progress.round == 0 ? 0 : lane.round_ends[progress.round - 1]);
    const Step* const last = lane.steps.data() + lane.round_ends[progress.round];

    // 1 for this function itself. All steps are counted before any is posted, since a posted step may meet its partner at
    // once.
    progress.open = 1;
    int signals = 0;
    bool waits = false;
    for (const Step* step = first; step != last; ++step) {
      progress.open += Steps::waits(step->kind) ? 1 : 0;
      signals += step->kind == StepKind::signal ? 1 : 0;
      waits |= step->kind == StepKind::wait;
    }
    if (signals > 0) {
      demand(signals == 1 && !waits, "Rank {} signals and waits, or signals twice, in round {}.", progress.rank,
             progress.round);
      signals_->signal(progress.rank, [&](int rank) { close_one(progress_of(rank, 0)); });
    }
    for_each_form([&](Memory& form) { form.begin_round(progress.rank, progress.lane, progress.round, first, last); });
    for (const Step* step = first; step != last; ++step) post(progress, *step);
    close_one(progress);
  }

  void close_one(LaneProgress& progress) {
    if (--progress.open > 0) return;
    ++progress.round;
    ready_.push_back(&progress);
  }

  void post(LaneProgress& progress, const Step& step) {
    switch (step.kind) {
      case StepKind::signal: return;  // given before the round's other steps
      case StepKind::wait:
        if (signals_->wait(progress.rank, step.peer)) close_one(progress);
        return;
      case StepKind::send:
      case StepKind::recv:
      case StepKind::recv_reduce: return exchange(progress, step);
      default: return for_each_form([&](Memory& form) { form.work(progress.rank, step); });
    }
  }

  void exchange(LaneProgress& progress, const Step& step) {
    const bool sends = step.kind == StepKind::send;
    const int sender = sends ? progress.rank : step.peer;
    const int receiver = sends ? step.peer : progress.rank;
    const Step*& partner = posted_[(static_cast<std::size_t>(sender) * size_ + receiver) * most_lanes_ + progress.lane];
    if (partner == nullptr) {
      partner = &step;
      return;
    }
    demand((partner->kind == StepKind::send) != sends, "Rank {} has two messages {} rank {} under way in one round.",
           progress.rank, sends ? "to" : "from", step.peer);
    const Step& send = sends ? step : *partner;
    const Step& receive = sends ? *partner : step;
    partner = nullptr;
    demand(send.source.count == receive.destination.count, "Rank {} sends {} elements to rank {}, which expects {}.", sender,
           send.source.count, receiver, receive.destination.count);
    if (send.source.format != receive.destination.format) {
      refuse("Rank {} sends {} to rank {}, which expects {}.", sender, text_of(send.source.format), receiver,
             text_of(receive.destination.format));
    }
    for_each_form([&](Memory& form) { form.arrive(sender, send, receiver, receive); });
    close_one(progress);
    close_one(progress_of(step.peer, progress.lane));
  }

  static std::string text_of(QuantizedFormat format) {
    return format == QuantizedFormat::none ? "elements" : fmt::format("records of {}", name(format));
  }

  const std::vector<Plan>& plans_;
  int size_;
  CollectiveContract promise_;
  std::vector<std::unique_ptr<Memory>> forms_;
  const Memory* at_work_ = nullptr;
  std::optional<Signals> signals_;       // set if ranks touch each other's memory
  std::vector<LaneProgress> progress_;   // of all lanes of all ranks
  std::vector<std::size_t> first_lane_;  // of a rank in progress_
  int most_lanes_ = 0;                   // of any rank
  std::vector<const Step*> posted_;      // by sender, receiver and lane: the step that waits for its partner
  std::vector<LaneProgress*> ready_;
};

// The library runs barriers in place, too.
bool runs_in_place(Collective collective) { return can_be_in_place(collective) || collective == Collective::barrier; }

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
    Run run(plans);
    run.add_form(false);
    run.check_all();
    return run.most_quantizations();
  } catch (const Refused& refused) {
    fail(ErrorCode::invalid_argument, "{}", refused.sentence);
  }
}

std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place) {
  check_collective(plans);
  const Collective collective = plans[0].request.collective;
  require(!in_place || runs_in_place(collective), "{} has no in-place form.", name(collective));
  try {
    check_requests(plans);
    Run run(plans);
    run.add_form(in_place);
    run.check_all();
    return std::nullopt;
  } catch (const Refused& refused) {
    return refused.sentence;
  }
}

std::optional<std::string> verify_all_forms(const std::vector<Plan>& plans) {
  check_collective(plans);
  std::optional<Run> run;
  try {
    check_requests(plans);
    run.emplace(plans);
    run->add_form(false);
    if (runs_in_place(plans[0].request.collective)) run->add_form(true);
    run->check_all();
    return std::nullopt;
  } catch (const Refused& refused) {
    return fmt::format("{}: {}", run ? run->form_of_fault() : "out of place", refused.sentence);
  }
}

}  // namespace stretto
