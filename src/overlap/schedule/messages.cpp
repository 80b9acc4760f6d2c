// Inserts messages into the computations of a schedule.
#include <algorithm>
#include <tuple>

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"
#include "overlap/schedule/limits.hpp"
#include "stretto/overlap/schedule.hpp"

namespace stretto {
namespace {

// Its result is needed by another part of the model.
bool has_result(const Action& action) { return action.kind < ActionKind::backward_weight; }

int duration(ActionKind kind) { return kind == ActionKind::backward ? 2 : is_of_step(kind) ? 0 : 1; }

// When every computation begins and ends if messages take no time.
class Timetable {
 public:
  explicit Timetable(const Schedule& of) : of_(of), begins_(of.lists.size()) {
    const std::size_t pairs = static_cast<std::size_t>(of.parts()) * of.all_microbatches();
    for (auto* ends : {&forward_ends_, &backward_ends_}) ends->assign(pairs, -1);
    std::vector<std::int64_t> free(of.stages, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < of.stages; ++stage) moved |= advance(stage, free[stage]);
    }
    for (int stage = 0; stage < of.stages; ++stage) {
      const std::size_t at = begins_[stage].size();
      if (at == of.lists[stage].size()) continue;
      fail(ErrorCode::invalid_argument, "Stage {} would wait for ever before {}: no order of messages can help.", stage,
           to_string(of.lists[stage][at].front()));
    }
  }

  // The begin of the computation at a place in the stage's list.
  std::int64_t begin(int stage, std::size_t place) const { return begins_[stage][place]; }
  std::int64_t end(int part, const Action& action) const {
    return (goes_forward(action.kind) ? forward_ends_ : backward_ends_)[index(part, action.microbatch)];
  }

 private:
  std::size_t index(int part, int microbatch) const {
    return static_cast<std::size_t>(part) * of_.all_microbatches() + microbatch;
  }

  bool advance(int stage, std::int64_t& free) {
    auto& begins = begins_[stage];
    const std::size_t before = begins.size();
    while (begins.size() < of_.lists[stage].size()) {
      const Action& action = of_.lists[stage][begins.size()].front();
      const int part = of_.part_of(stage, action.chunk);
      const int from = part_before(of_, stage, action);
      std::int64_t begin = free;
      if (has_result(action) && from >= 0 && from < of_.parts()) {
        const std::int64_t ready = end(from, action);
        if (ready < 0) break;
        begin = std::max(begin, ready);
      }
      begins.push_back(begin);
      free = begin + duration(action.kind);
      if (has_result(action)) {
        (goes_forward(action.kind) ? forward_ends_ : backward_ends_)[index(part, action.microbatch)] = free;
      }
    }
    return begins.size() > before;
  }

  const Schedule& of_;
  std::vector<std::vector<std::int64_t>> begins_;           // by stage and place
  std::vector<std::int64_t> forward_ends_, backward_ends_;  // by part and microbatch; -1: not known yet
};

struct Message {
  std::int64_t time;  // when its data are there
  int from_part;      // with the time and the direction, this orders messages alike on all stages
  Action action;
  bool operator<(const Message& other) const {
    return std::tie(time, from_part, action) < std::tie(other.time, other.from_part, other.action);
  }
};

}  // namespace

Schedule with_messages(Schedule schedule) {
  require_sizes(schedule);
  require(static_cast<int>(schedule.lists.size()) == schedule.stages, "A schedule of {} stages has {} lists.",
          schedule.stages, schedule.lists.size());
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const ActionGroup& group : schedule.lists[stage]) {
      require(group.size() == 1 && !is_message(group.front().kind) && group.front().chunk >= 0 &&
                  group.front().chunk < schedule.chunks && group.front().microbatch >= 0 &&
                  group.front().microbatch < schedule.all_microbatches(),
              "Stage {} has a group that is not one computation of the schedule; messages come by themselves.", stage);
    }
  }
  const Timetable times(schedule);
  std::vector<std::vector<Message>> messages(schedule.stages);
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (const ActionGroup& group : schedule.lists[stage]) {
      const Action& action = group.front();
      const bool forward = goes_forward(action.kind);
      const int part = schedule.part_of(stage, action.chunk);
      const int to = part_after(schedule, stage, action);
      if (!has_result(action) || to < 0 || to >= schedule.parts() || schedule.stage_of(to) == stage) continue;
      const std::int64_t time = times.end(part, action);
      const ActionKind send = forward ? ActionKind::send_forward : ActionKind::send_backward;
      const ActionKind receive = forward ? ActionKind::receive_forward : ActionKind::receive_backward;
      messages[stage].push_back({time, part, {send, action.microbatch, action.chunk}});
      messages[schedule.stage_of(to)].push_back({time, part, {receive, action.microbatch, schedule.chunk_of(to)}});
    }
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::sort(messages[stage].begin(), messages[stage].end());
    std::vector<ActionGroup> list;
    auto next = messages[stage].begin();
    for (std::size_t place = 0; place <= schedule.lists[stage].size(); ++place) {
      const bool last = place == schedule.lists[stage].size();
      ActionGroup group;
      while (next != messages[stage].end() && (last || next->time <= times.begin(stage, place))) {
        group.push_back((next++)->action);
      }
      if (!group.empty()) list.push_back(std::move(group));
      if (!last) list.push_back(schedule.lists[stage][place]);
    }
    schedule.lists[stage] = std::move(list);
  }
  return schedule;
}

}  // namespace stretto
