#include "overlap/schedule/schedule_run.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "overlap/schedule/actions.hpp"
#include "overlap/schedule/limits.hpp"
#include "overlap/schedule/window.hpp"

namespace stretto {

ScheduleRun::ScheduleRun(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts)
    : schedule_(schedule), times_(of_parts), has_updates_(has_updates(schedule)), has_sums_(updates_jointly(schedule)) {
  require_sizes(schedule);
  require(static_cast<int>(schedule.lists.size()) == schedule.stages, "A schedule of {} stages has {} lists.",
          schedule.stages, schedule.lists.size());
  require(static_cast<int>(of_parts.size()) == schedule.parts(), "There are times of {} parts of a model that has {}.",
          of_parts.size(), schedule.parts());
  for (const ScheduleTimes& times : of_parts) {
    for (const double time : {times.forward, times.backward_input, times.backward_weight, times.message}) {
      require(time >= 0 && time <= 1e9, "A computation or message of {} seconds cannot be; give 0 to 1e9.", time);
    }
  }
  stages_.resize(schedule.stages);
  progress_.resize(static_cast<std::size_t>(schedule.parts()) * schedule.all_microbatches());
  updates_.resize(schedule.parts());
  sums_.resize(schedule.parts());
  summed_.resize(schedule.steps);
}

void ScheduleRun::run() {
  for (int stage = schedule_.stages - 1; stage >= 0; --stage) woken_.push_back(stage);
  while (!woken_.empty()) {
    const int stage = woken_.back();
    woken_.pop_back();
    while (advance(stage)) {
    }
  }
  for (int stage = 0; stage < schedule_.stages; ++stage) {
    if (stages_[stage].place < schedule_.lists[stage].size()) explain_waiting();
  }
  require_all_done();
}

// Goes past the group that the stage has reached, if it can.
bool ScheduleRun::advance(int stage) {
  Stage& its = stages_[stage];
  if (its.place == schedule_.lists[stage].size()) return false;
  const ActionGroup& group = group_of(stage);
  if (!its.reached) {
    for (const Action& action : group) expect(stage, action);
    require(!group.empty(), "Stage {} has an empty group; leave it out.", stage);
    const Action& first = group.front();
    if (!is_message(first.kind)) {
      if (first.kind == ActionKind::update && !may_update(stage, first)) {
        at_update_.push_back(stage);
        return false;
      }
      first.kind == ActionKind::sum      ? sum(stage, first)
      : first.kind == ActionKind::update ? update(stage, first)
                                         : compute(stage, first);
      ++its.place;
      return true;
    }
    post(stage, group);
  }
  if (its.missing > 0) return false;
  its.reached = false;
  ++its.place;
  return true;
}

void ScheduleRun::expect(int stage, const Action& action) {
  require_numbers(schedule_, stage, action);
  const ActionGroup& group = group_of(stage);
  require(group.size() == 1 || is_message(action.kind),
          "Stage {} has {} beside other actions of a group; only messages go together.", stage, to_string(action));
}

// done: the sums or updates that the part has made.
void ScheduleRun::require_gradients(int stage, const Action& action, int done) {
  const int part = schedule_.part_of(stage, action.chunk);
  const int step = action.microbatch;
  require(step >= done, "Stage {} has {} a second time.", stage, to_string(action));
  require(step == done, "Stage {} has {} before that of step {}.", stage, to_string(action), done);
  for (int i = step * schedule_.microbatches; i < (step + 1) * schedule_.microbatches; ++i) {
    require(at(part, i).weights >= 0, "Stage {} has {} before the backward of microbatch {}.", stage, to_string(action), i);
  }
}

void ScheduleRun::sum(int stage, const Action& action) {
  const int part = schedule_.part_of(stage, action.chunk);
  require_gradients(stage, action, sums_[part]);
  require(updates_[part] == sums_[part], "Stage {} has {} before the update of step {}, whose gradients lie aside.", stage,
          to_string(action), updates_[part]);
  ++sums_[part];
  const double end = stages_[stage].computed;
  Sum& all = summed_[action.microbatch];
  all.end = std::max(all.end, end);
  if (++all.parts == schedule_.parts()) woken_.insert(woken_.end(), at_update_.begin(), at_update_.end());
  if (all.parts == schedule_.parts()) at_update_.clear();
  actions_.push_back({stage, action, end, end});
}

// Whether all parts have come to the sum that the update needs.
bool ScheduleRun::may_update(int stage, const Action& action) const {
  if (!has_sums_) return true;
  require(action.microbatch < sums_[schedule_.part_of(stage, action.chunk)], "Stage {} has {} before the sum of that step.",
          stage, to_string(action));
  return summed_[action.microbatch].parts == schedule_.parts();
}

void ScheduleRun::update(int stage, const Action& action) {
  int& updates = updates_[schedule_.part_of(stage, action.chunk)];
  require_gradients(stage, action, updates);
  ++updates;
  double& computed = stages_[stage].computed;
  if (has_sums_ && schedule_.stages > 1) {
    const auto longest = std::max_element(
        times_.begin(), times_.end(), [](const ScheduleTimes& a, const ScheduleTimes& b) { return a.message < b.message; });
    computed = std::max(computed, summed_[action.microbatch].end + longest->message);
  }
  actions_.push_back({stage, action, computed, computed});
}

void ScheduleRun::compute(int stage, const Action& action) {
  const int part = schedule_.part_of(stage, action.chunk);
  Progress& its = at(part, action.microbatch);
  const auto demand = [&](bool holds, const std::string& why) {
    require(holds, "Stage {} computes {} {}.", stage, to_string(action), why);
  };
  // The neighbouring part gives a message, or the result itself if the same stage holds that part.
  const auto from = [&](int neighbour, double Progress::*computed, double arrived) {
    return schedule_.stage_of(neighbour) == stage ? at(neighbour, action.microbatch).*computed : arrived;
  };
  demand(action.version >= 0 && action.version <= updates_[part], "where that version of the weights is not made");
  demand(
      schedule_.stashes || action.version == updates_[part],
      fmt::format("with another version of the weights than the latest, {}, and nothing older is stashed", updates_[part]));
  demand(!schedule_.stashes || action.kind == ActionKind::forward || its.forward < 0 || its.version == action.version,
         fmt::format("with another version of the weights than its forward, which read version {}", its.version));
  const int collected = has_sums_ ? sums_[part] : updates_[part];
  demand(!has_updates_ || !adds_weight_gradients(action.kind) || action.microbatch / schedule_.microbatches <= collected,
         fmt::format("where its gradients would be added to those of step {}", collected));
  const ScheduleTimes& times = times_[part];
  double& free = stages_[stage].computed;
  double begin = free, seconds = times.backward_weight;
  if (action.kind == ActionKind::forward) {
    demand(its.forward < 0, "a second time");
    const double input = part == 0 ? 0 : from(part - 1, &Progress::forward, its.input);
    demand(input >= 0, "before its input is there");
    begin = std::max(begin, input);
    seconds = times.forward;
    its.forward = begin + seconds;
    its.version = action.version;
  } else if (action.kind == ActionKind::backward_weight) {
    demand(its.weights < 0, "a second time");
    demand(its.backward >= 0, "before its backward_input");
    its.weights = begin + seconds;
  } else {
    demand(its.backward < 0, "a second time");
    demand(its.forward >= 0, "before its forward");
    const double gradient = part + 1 == schedule_.parts() ? 0 : from(part + 1, &Progress::backward, its.gradient);
    demand(gradient >= 0, "before its gradient is there");
    begin = std::max(begin, gradient);
    seconds = times.backward_input + (action.kind == ActionKind::backward ? times.backward_weight : 0);
    its.backward = begin + seconds;
    if (action.kind == ActionKind::backward) its.weights = its.backward;
  }
  free = begin + seconds;
  actions_.push_back({stage, action, begin, free});
}

// When the data of a message are there, on the stage that has reached it. Receives have none.
double ScheduleRun::ready_to_send(int stage, const Action& action) {
  const int peer = schedule_.peer_of(stage, action);
  require(peer >= 0 && peer != stage, "Stage {} has {}, but no other stage {}.", stage, to_string(action),
          is_send(action.kind) ? "needs it" : "has it");
  Progress& its = at(schedule_.part_of(stage, action.chunk), action.microbatch);
  bool& posted = its.posted[static_cast<std::size_t>(action.kind) - static_cast<std::size_t>(ActionKind::send_forward)];
  require(!posted, "Stage {} has {} a second time.", stage, to_string(action));
  posted = true;
  if (!is_send(action.kind)) return 0;
  const double computed = action.kind == ActionKind::send_forward ? its.forward : its.backward;
  require(computed >= 0, "Stage {} has {} before it has computed that.", stage, to_string(action));
  return computed;
}

void ScheduleRun::post(int stage, const ActionGroup& group) {
  Stage& its = stages_[stage];
  its.reached = true;
  its.missing = static_cast<int>(group.size());
  its.ready = its.group_end;
  for (const Action& action : group) its.ready = std::max(its.ready, ready_to_send(stage, action));
  for (const Action& action : group) {
    const int peer = schedule_.peer_of(stage, action);
    if (is_send(action.kind)) {
      channels_[{stage, peer}].sent.push_back({action, its.ready});
      match(stage, peer);
    } else {
      channels_[{peer, stage}].received.push_back({action, its.ready});
      match(peer, stage);
    }
  }
}

void ScheduleRun::match(int from, int to) {
  Channel& between = channels_[{from, to}];
  if (between.sent.empty() || between.received.empty()) return;
  const Posted send = between.sent.front();
  const Posted receive = between.received.front();
  between.sent.pop_front();
  between.received.pop_front();
  const bool forward = goes_forward(send.action.kind);
  require(forward == goes_forward(receive.action.kind) && send.action.microbatch == receive.action.microbatch &&
              part_after(schedule_, from, send.action) == schedule_.part_of(to, receive.action.chunk),
          "Stage {} has {} where stage {} has {}, which is another message.", to, to_string(receive.action), from,
          to_string(send.action));
  const double begin = std::max(send.ready, receive.ready);
  const double end = begin + times_[schedule_.part_of(from, send.action.chunk)].message;
  Progress& there = at(schedule_.part_of(to, receive.action.chunk), receive.action.microbatch);
  (forward ? there.input : there.gradient) = end;
  for (const auto& [stage, action] : {std::pair{from, send.action}, std::pair{to, receive.action}}) {
    stages_[stage].group_end = std::max(stages_[stage].group_end, end);
    actions_.push_back({stage, action, begin, end});
    if (--stages_[stage].missing == 0) woken_.push_back(stage);
  }
}

// Returns a message of a waiting stage whose other side has not been reached, or an update whose sum has not.
ScheduleRun::Waiting ScheduleRun::first_waiting(int stage) const {
  for (const Action& action : group_of(stage)) {
    if (action.kind == ActionKind::update) {
      int part = 0;
      while (sums_[part] > action.microbatch) ++part;
      return {action, schedule_.stage_of(part)};
    }
    const int peer = schedule_.peer_of(stage, action);
    const bool sends = is_send(action.kind);
    const Channel& between = channels_.at(sends ? std::pair{stage, peer} : std::pair{peer, stage});
    const auto& waiting = sends ? between.sent : between.received;
    if (std::any_of(waiting.begin(), waiting.end(), [&](const Posted& each) { return each.action == action; })) {
      return {action, peer};
    }
  }
  fail(ErrorCode::internal, "Stage {} waits for no message of its group.", stage);
}

void ScheduleRun::explain_waiting() const {
  int stage = 0;
  while (stages_[stage].place == schedule_.lists[stage].size()) ++stage;
  // Every waiting stage waits for another one: the way leads to one that has ended, or back to where it has been.
  std::vector<int> way;
  while (std::find(way.begin(), way.end(), stage) == way.end()) {
    way.push_back(stage);
    const auto [action, peer] = first_waiting(stage);
    if (stages_[peer].place == schedule_.lists[peer].size()) {
      fail(ErrorCode::invalid_argument, "Stage {} would wait for ever at {}: stage {} ends without the other side of it.",
           stage, to_string(action), peer);
    }
    stage = peer;
  }
  std::string cycle;
  for (auto each = std::find(way.begin(), way.end(), stage); each != way.end(); ++each) {
    const auto [action, peer] = first_waiting(*each);
    cycle += fmt::format("{}stage {} at {} for stage {}", cycle.empty() ? "" : ", ", *each, to_string(action), peer);
  }
  fail(ErrorCode::invalid_argument, "Stages would wait for each other for ever: {}.", cycle);
}

void ScheduleRun::require_all_done() {
  for (int part = 0; part < schedule_.parts(); ++part) {
    require(!has_updates_ || updates_[part] == schedule_.steps, "Stage {} never has {}.", schedule_.stage_of(part),
            to_string({ActionKind::update, updates_[part], schedule_.chunk_of(part)}));
    for (int i = 0; i < schedule_.all_microbatches(); ++i) {
      const Progress& its = at(part, i);
      for (const auto& [done, kind] :
           {std::pair{its.forward, ActionKind::forward}, std::pair{its.backward, ActionKind::backward},
            std::pair{its.weights, ActionKind::backward_weight}}) {
        require(done >= 0, "Stage {} never computes {}.", schedule_.stage_of(part),
                to_string({kind, i, schedule_.chunk_of(part)}));
      }
    }
  }
}

}  // namespace stretto
