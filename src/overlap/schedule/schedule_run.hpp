#pragma once
#include <array>
#include <deque>
#include <map>

#include "stretto/overlap/schedule.hpp"

namespace stretto {

// Runs all stages of a schedule symbolically, with the times of everything. Throws as check() does.
class ScheduleRun {
 public:
  ScheduleRun(const Schedule& schedule, const std::vector<ScheduleTimes>& of_parts);
  void run();
  const std::vector<SimulatedAction>& actions() const { return actions_; }

 private:
  struct Posted {  // a message whose stage has reached its group
    Action action;
    double ready;
  };
  struct Stage {
    std::size_t place = 0;  // of the group that the stage has reached
    bool reached = false;   // the group's messages are posted
    int missing = 0;        // of those messages: without their other side
    double computed = 0;    // when its last computation ended
    double group_end = 0;   // when the last group of messages ended
    double ready = 0;       // when the group of messages that it has reached could begin
  };
  // The times at which a microbatch's data reach a part of the model or are computed there; below 0 until then.
  struct Progress {
    double input = -1, gradient = -1;                  // arrival of the message
    double forward = -1, backward = -1, weights = -1;  // end of the computation; backward: of the input's gradient
    int version = 0;                                   // of the weights, that forward has read
    std::array<bool, 4> posted = {};                   // messages, by kind
  };
  struct Channel {  // messages from one stage to another that wait for their other side
    std::deque<Posted> sent, received;
  };

  bool advance(int stage);
  void sum(int stage, const Action& action);
  bool may_update(int stage, const Action& action) const;
  void update(int stage, const Action& action);
  void require_gradients(int stage, const Action& action, int done);
  void compute(int stage, const Action& action);
  void post(int stage, const ActionGroup& group);
  double ready_to_send(int stage, const Action& action);
  void expect(int stage, const Action& action);
  void match(int from, int to);
  [[noreturn]] void explain_waiting() const;
  struct Waiting {
    Action action;
    int for_stage;
  };
  Waiting first_waiting(int stage) const;
  void require_all_done();
  Progress& at(int part, int microbatch) {
    return progress_[static_cast<std::size_t>(part) * schedule_.all_microbatches() + microbatch];
  }
  const ActionGroup& group_of(int stage) const { return schedule_.lists[stage][stages_[stage].place]; }

  const Schedule& schedule_;
  const std::vector<ScheduleTimes>& times_;  // by part
  std::vector<Stage> stages_;
  std::vector<Progress> progress_;
  const bool has_updates_, has_sums_;
  std::vector<int> updates_, sums_;  // by part
  struct Sum {
    int parts = 0;   // that have come to it
    double end = 0;  // when the last of them had
  };
  std::vector<Sum> summed_;                          // by step
  std::vector<int> at_update_;                       // stages that wait for a sum
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
  std::vector<int> woken_;                           // stages that may go on
  std::vector<SimulatedAction> actions_;
};

}  // namespace stretto
