#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/fail.hpp"
#include "program/plan_program.hpp"
#include "program/value_parts.hpp"
#include "stretto/program.hpp"

namespace stretto {
namespace {

using Kind = ProgramAction::Kind;

// Makes the list of one executor.
class ListMaker {
 public:
  ListMaker(const Program& program, const ProgramPlan& plan, int executor)
      : program_(program), plan_(plan), executor_(executor) {}

  std::vector<ProgramAction> list() {
    for (int number = 0; number < std::ssize(program_.steps()); ++number) add(number);
    while (!unfinished_.empty()) finish(unfinished_.front());
    free_behind_last_use();
    return std::move(list_);
  }

 private:
  bool has(int value) const {
    return device_of(plan_.groups[static_cast<std::size_t>(program_.values()[static_cast<std::size_t>(value)].group)],
                     executor_) >= 0;
  }

  void add(int number) {
    const Program::Step& step = program_.steps()[static_cast<std::size_t>(number)];
    const bool is_move = step.kind == Program::StepKind::move;
    if (!has_part_in(step)) return;
    for (const int input : step.inputs) {
      const auto maker = moved_.find(input);
      if (maker != moved_.end()) finish(maker->second);
    }
    if (is_move) {
      // What a rank sends stays in memory until it has left: one value at a time.
      while (!sends_.empty()) finish(*sends_.begin());
    }
    ProgramAction action{is_move                                  ? Kind::start_move
                         : step.kind == Program::StepKind::reduce ? Kind::reduce
                                                                  : Kind::call,
                         number};
    for (const int output : step.outputs) {
      if (!has(output)) continue;
      action.makes.push_back(output);
      if (is_move) moved_[output] = number;
    }
    if (is_move) {
      unfinished_.push_back(number);
      if (has(step.inputs.front())) sends_.insert(number);
    }
    list_.push_back(std::move(action));
  }

  bool has_part_in(const Program::Step& step) const {
    if (device_of(plan_.groups[static_cast<std::size_t>(step.group)], executor_) >= 0) return true;
    return step.kind == Program::StepKind::move && has(step.inputs.front());
  }

  void finish(int number) {
    const auto found = std::ranges::find(unfinished_, number);
    if (found == unfinished_.end()) return;
    unfinished_.erase(found);
    sends_.erase(number);
    list_.push_back({Kind::finish_move, number});
  }

  void free_behind_last_use() {
    const std::vector<int> lasting = program_.lasting();
    const std::set<int> kept(lasting.begin(), lasting.end());
    std::map<int, std::size_t> last;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const Program::Step& step = program_.steps()[static_cast<std::size_t>(list_[i].step)];
      for (const auto* list : {&step.inputs, &step.outputs}) {
        for (const int value : *list) {
          if (has(value) && !kept.contains(value)) last[value] = i;
        }
      }
    }
    for (const auto& [value, i] : last) list_[i].frees.push_back(value);
  }

  const Program& program_;
  const ProgramPlan& plan_;
  int executor_;
  std::vector<ProgramAction> list_;
  std::vector<int> unfinished_;  // moves, in the order of their starts
  std::set<int> sends_;          // of these, the ones that this executor has the source of
  std::map<int, int> moved_;     // by value: the move that makes it
};

void plan_moves(const Program& program, ProgramPlan& plan, const std::vector<int>& nodes) {
  std::map<std::string, int> known;
  for (const Program::Step& step : program.steps()) {
    plan.move_of_step.push_back(-1);
    if (step.kind != Program::StepKind::move) continue;
    const Program::TypedValue& from = program.values()[static_cast<std::size_t>(step.inputs.front())];
    const Program::TypedValue& to = program.values()[static_cast<std::size_t>(step.outputs.front())];
    const std::vector<int>& sources = plan.groups[static_cast<std::size_t>(from.group)];
    const std::vector<int>& targets = plan.groups[static_cast<std::size_t>(to.group)];
    std::set<int> all(sources.begin(), sources.end());
    all.insert(targets.begin(), targets.end());
    ProgramPlan::PlannedMove move{{all.begin(), all.end()}, {}};
    const auto places = [&](const std::vector<int>& executors) {
      std::vector<int> result(executors.size());
      std::ranges::transform(executors, result.begin(), [&](int executor) { return device_of(move.ranks, executor); });
      return result;
    };
    std::vector<int> its_nodes;
    for (const int executor : move.ranks) {
      if (!nodes.empty()) its_nodes.push_back(nodes[static_cast<std::size_t>(executor)]);
    }
    const std::string key = fmt::format("{} {} {} {} {} {}", name(from.type.dtype), fmt::join(from.type.shape, "x"),
                                        from.group, from.type.placement.dimension, to.group, to.type.placement.dimension);
    const auto [found, is_new] = known.try_emplace(key, static_cast<int>(plan.moves.size()));
    plan.move_of_step.back() = found->second;
    if (!is_new) continue;
    move.plan = plan_move(
        {{from.type.dtype, from.type.shape, division_of(from.type, places(sources)), division_of(to.type, places(targets))}},
        static_cast<int>(move.ranks.size()), its_nodes);
    plan.moves.push_back(std::move(move));
  }
}

}  // namespace

std::int64_t peak_of(const Program& program, const ProgramPlan& plan, int executor) {
  const auto bytes = [&](int value) {
    const Program::TypedValue& its = program.values()[static_cast<std::size_t>(value)];
    const std::vector<int>& group = plan.groups[static_cast<std::size_t>(its.group)];
    const int device = device_of(group, executor);
    return device < 0 ? 0 : part_bytes(its.type, static_cast<int>(group.size()), device);
  };
  std::int64_t live = 0;
  for (const int input : program.given()) live += bytes(input);
  std::int64_t peak = live;
  for (const ProgramAction& action : plan.lists[static_cast<std::size_t>(executor)]) {
    for (const int value : action.makes) live += bytes(value);
    const int number = plan.move_of_step[static_cast<std::size_t>(action.step)];
    std::int64_t buffers = 0;
    if (number >= 0) {
      const ProgramPlan::PlannedMove& move = plan.moves[static_cast<std::size_t>(number)];
      buffers = move.plan.buffer_bytes(device_of(move.ranks, executor));
    }
    if (action.kind == Kind::start_move) live += buffers;
    peak = std::max(peak, live);
    if (action.kind == Kind::finish_move) live -= buffers;
    for (const int value : action.frees) live -= bytes(value);
  }
  return peak;
}

ProgramPlan plan_program(const Program& program, std::vector<std::vector<int>> groups, int executors,
                         const std::vector<int>& nodes) {
  require(groups.size() == program.groups().size(), "Program '{}' has {} groups, and executors are given for {}.",
          program.name(), program.groups().size(), groups.size());
  require(nodes.empty() || std::ssize(nodes) == executors, "Program '{}' is planned for {} executors, and nodes of {}.",
          program.name(), executors, nodes.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    require(std::ssize(groups[g]) == program.groups()[g],
            "Group {} of program '{}' has {} devices, and {} executors are given.", g, program.name(), program.groups()[g],
            groups[g].size());
    const std::set<int> distinct(groups[g].begin(), groups[g].end());
    require(distinct.size() == groups[g].size() && *distinct.begin() >= 0 && *distinct.rbegin() < executors,
            "Group {} of program '{}' is bound to executors {}; they must be distinct ones of {}.", g, program.name(),
            fmt::join(groups[g], ", "), executors);
  }
  ProgramPlan plan;
  plan.groups = std::move(groups);
  plan_moves(program, plan, nodes);
  for (int executor = 0; executor < executors; ++executor) {
    plan.lists.push_back(ListMaker(program, plan, executor).list());
    plan.peak_bytes.push_back(peak_of(program, plan, executor));
  }
  return plan;
}

std::string describe(const Program& program, const ProgramAction& action) {
  const char* const kinds[] = {"call", "reduce", "start_move", "finish_move"};
  return fmt::format("{} of step {} ({})", kinds[static_cast<int>(action.kind)], action.step,
                     program.steps()[static_cast<std::size_t>(action.step)].function);
}

std::string ProgramPlan::to_string(const Program& program) const {
  std::string text;
  for (std::size_t executor = 0; executor < lists.size(); ++executor) {
    text +=
        fmt::format("executor {}: {} actions, at most {} bytes\n", executor, lists[executor].size(), peak_bytes[executor]);
    for (const ProgramAction& action : lists[executor]) {
      text += "  " + describe(program, action);
      if (!action.makes.empty()) text += fmt::format(", makes {}", fmt::join(action.makes, " "));
      if (!action.frees.empty()) text += fmt::format(", frees {}", fmt::join(action.frees, " "));
      text += "\n";
    }
  }
  return text;
}

}  // namespace stretto
