#include <algorithm>
#include <deque>
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
enum class There : std::uint8_t { being_made, ready };

struct CheckedExecutor {
  std::size_t next = 0;            // in its list
  std::map<int, There> values;     // that it has memory for
  std::deque<int> moves;           // started and not executed: in this order
  std::set<int> unfinished, done;  // moves that are not finished; steps
};

class Check {
 public:
  Check(const Program& program, const ProgramPlan& plan) : program_(program), plan_(plan), executors_(plan.lists.size()) {}

  void run() {
    check_shape();
    for (const int input : program_.given()) {
      for (const int executor : group_of(input)) of(executor).values[input] = There::ready;
    }
    bool moved = true;
    while (moved) {
      moved = execute_moves();
      for (int executor = 0; executor < std::ssize(executors_); ++executor) {
        while (advance(executor)) moved = true;
      }
    }
    check_end();
  }

 private:
  template <class... Args>
  void demand(bool condition, int executor, fmt::format_string<Args...> sentence, Args&&... args) const {
    if (condition) return;
    const auto& list = plan_.lists[static_cast<std::size_t>(executor)];
    const std::size_t next = executors_[static_cast<std::size_t>(executor)].next;
    const std::string place =
        next < list.size() ? "at action " + std::to_string(next) + ", " + describe(program_, list[next]) : "at its end";
    fail(ErrorCode::invalid_argument, "Program '{}': executor {} {}: {}.", program_.name(), executor, place,
         fmt::format(sentence, std::forward<Args>(args)...));
  }

  CheckedExecutor& of(int executor) { return executors_[static_cast<std::size_t>(executor)]; }
  const Program::Step& step(int number) const { return program_.steps()[static_cast<std::size_t>(number)]; }
  const std::vector<int>& group_of(int value) const {
    return plan_.groups[static_cast<std::size_t>(program_.values()[static_cast<std::size_t>(value)].group)];
  }
  const ProgramPlan::PlannedMove& move_of(int number) const {
    return plan_.moves[static_cast<std::size_t>(plan_.move_of_step[static_cast<std::size_t>(number)])];
  }
  const std::vector<int>& participants(int number) const {
    if (step(number).kind == Program::StepKind::move) return move_of(number).ranks;
    return plan_.groups[static_cast<std::size_t>(step(number).group)];
  }

  bool are_there(const std::set<int>& executors) const {
    return executors.empty() || (*executors.begin() >= 0 && *executors.rbegin() < std::ssize(plan_.lists));
  }

  void check_shape() const {
    require(plan_.move_of_step.size() == program_.steps().size() && plan_.peak_bytes.size() == plan_.lists.size(),
            "Program '{}' has {} steps, and its plan is for {}, with {} peaks of {} executors.", program_.name(),
            program_.steps().size(), plan_.move_of_step.size(), plan_.peak_bytes.size(), plan_.lists.size());
    require(plan_.groups.size() == program_.groups().size(), "Program '{}' has {} groups, and its plan is for {}.",
            program_.name(), program_.groups().size(), plan_.groups.size());
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
      const std::set<int> distinct(plan_.groups[g].begin(), plan_.groups[g].end());
      require(
          std::ssize(distinct) == program_.groups()[g] && distinct.size() == plan_.groups[g].size() && are_there(distinct),
          "Program '{}': group {} is bound to executors {}; it must have {} distinct ones of {}.", program_.name(), g,
          fmt::join(plan_.groups[g], ", "), program_.groups()[g], plan_.lists.size());
    }
    for (std::size_t s = 0; s < program_.steps().size(); ++s) {
      const bool is_move = program_.steps()[s].kind == Program::StepKind::move;
      const int number = plan_.move_of_step[s];
      require(is_move ? number >= 0 && number < std::ssize(plan_.moves) : number == -1,
              "Program '{}': step {} names move {} of {}.", program_.name(), s, number, plan_.moves.size());
      if (!is_move) continue;
      const ProgramPlan::PlannedMove& move = plan_.moves[static_cast<std::size_t>(number)];
      const std::set<int> its_ranks(move.ranks.begin(), move.ranks.end());
      require(
          std::ranges::equal(its_ranks, move.ranks) && are_there(its_ranks) && move.plan.ranks == std::ssize(move.ranks) &&
              move.plan.tensors.size() == 1,
          "Program '{}': the move of step {} is of {} tensors among {} ranks, which are executors {}; it must be of one, "
          "and they ascending ones of {}.",
          program_.name(), s, move.plan.tensors.size(), move.plan.ranks, fmt::join(move.ranks, ", "), plan_.lists.size());
      const auto wrong = verify(move.plan);
      require(!wrong, "Program '{}': the move of step {}: {}", program_.name(), s, wrong.value_or(""));
      const auto lies = [&](const Division& division, int value) {
        const Program::TypedValue& its = program_.values()[static_cast<std::size_t>(value)];
        std::vector<int> places;
        for (const int executor : group_of(value)) places.push_back(device_of(move.ranks, executor));
        const Division wanted = division_of(its.type, places);
        return division.ranks == wanted.ranks && division.boxes == wanted.boxes;
      };
      const MovedTensor& tensor = move.plan.tensors.front();
      const ValueType& type = program_.values()[static_cast<std::size_t>(program_.steps()[s].inputs.front())].type;
      require(tensor.dtype == type.dtype && tensor.shape == type.shape &&
                  lies(tensor.from, program_.steps()[s].inputs.front()) &&
                  lies(tensor.to, program_.steps()[s].outputs.front()),
              "Program '{}': the move of step {} is planned for other divisions than its values have.", program_.name(), s);
    }
    for (int executor = 0; executor < std::ssize(plan_.lists); ++executor) {
      for (const ProgramAction& action : plan_.lists[static_cast<std::size_t>(executor)]) {
        require(action.step >= 0 && action.step < std::ssize(program_.steps()),
                "Program '{}': executor {} has an action of step {}; there are {}.", program_.name(), executor, action.step,
                program_.steps().size());
        const Program::StepKind kind = step(action.step).kind;
        const bool fits = kind == Program::StepKind::call ? action.kind == Kind::call
                          : kind == Program::StepKind::reduce
                              ? action.kind == Kind::reduce
                              : action.kind == Kind::start_move || action.kind == Kind::finish_move;
        require(fits && device_of(participants(action.step), executor) >= 0,
                "Program '{}': executor {} has a {}, which is not its own.", program_.name(), executor,
                describe(program_, action));
      }
    }
  }

  bool execute_moves() {
    bool executed = false;
    for (CheckedExecutor& executor : executors_) {
      while (!executor.moves.empty()) {
        const int number = executor.moves.front();
        const std::vector<int>& ranks = participants(number);
        const bool all = std::ranges::all_of(
            ranks, [&](int rank) { return !of(rank).moves.empty() && of(rank).moves.front() == number; });
        if (!all) break;
        for (const int rank : ranks) of(rank).moves.pop_front();
        executed = true;
      }
    }
    return executed;
  }

  // Does the executor's next action, if nothing holds it up.
  bool advance(int executor) {
    CheckedExecutor& its = of(executor);
    const auto& list = plan_.lists[static_cast<std::size_t>(executor)];
    if (its.next == list.size()) return false;
    const ProgramAction& action = list[its.next];
    if (action.kind == Kind::finish_move) {
      demand(its.unfinished.contains(action.step), executor, "the move was not started, or has been finished");
      if (std::ranges::find(its.moves, action.step) != its.moves.end()) return false;
    } else if (action.kind != Kind::start_move) {
      const std::vector<int>& ranks = participants(action.step);
      const bool all = std::ranges::all_of(ranks, [&](int rank) {
        const auto& other = plan_.lists[static_cast<std::size_t>(rank)];
        return of(rank).done.contains(action.step) ||
               (of(rank).next < other.size() && other[of(rank).next].step == action.step);
      });
      if (!all) return false;
    }
    act(executor, its, action);
    ++its.next;
    return true;
  }

  void act(int executor, CheckedExecutor& its, const ProgramAction& action) {
    const Program::Step& step = this->step(action.step);
    if (action.kind != Kind::finish_move) {
      demand(its.done.insert(action.step).second, executor, "it does this a second time");
      for (const int input : step.inputs) {
        if (device_of(group_of(input), executor) < 0) continue;
        const auto found = its.values.find(input);
        demand(found != its.values.end() && found->second == There::ready, executor, "value {} is not there", input);
      }
      std::set<int> wanted;
      for (const int output : step.outputs) {
        if (device_of(group_of(output), executor) >= 0) wanted.insert(output);
      }
      demand(std::set<int>(action.makes.begin(), action.makes.end()) == wanted && action.makes.size() == wanted.size(),
             executor, "it makes values {}, and the step has {} here", fmt::join(action.makes, " "), fmt::join(wanted, " "));
      for (const int value : action.makes) {
        const bool is_new =
            its.values.emplace(value, action.kind == Kind::start_move ? There::being_made : There::ready).second;
        demand(is_new, executor, "value {} is made a second time", value);
      }
      if (action.kind == Kind::start_move) its.moves.push_back(action.step), its.unfinished.insert(action.step);
    } else {
      demand(action.makes.empty(), executor, "it makes values, which belongs to the start");
      its.unfinished.erase(action.step);
      for (const int output : step.outputs) {
        const auto found = its.values.find(output);
        if (found != its.values.end()) found->second = There::ready;
      }
    }
    for (const int value : action.frees) {
      for (const int number : its.unfinished) {
        const Program::Step& move = this->step(number);
        demand(move.inputs.front() != value && move.outputs.front() != value, executor,
               "value {} is freed while the move of step {} uses it", value, number);
      }
      demand(its.values.erase(value) == 1, executor, "value {} is freed, and is not there", value);
    }
  }

  void check_end() {
    std::string stuck;
    for (int executor = 0; executor < std::ssize(executors_); ++executor) {
      const auto& list = plan_.lists[static_cast<std::size_t>(executor)];
      const std::size_t next = of(executor).next;
      if (next == list.size()) continue;
      stuck += fmt::format("{}executor {} at action {}, {}", stuck.empty() ? "" : "; ", executor, next,
                           describe(program_, list[next]));
    }
    require(stuck.empty(), "Program '{}': these would wait for ever: {}.", program_.name(), stuck);
    const std::vector<int> lasting = program_.lasting();
    const std::set<int> kept(lasting.begin(), lasting.end());
    for (int executor = 0; executor < std::ssize(executors_); ++executor) {
      const CheckedExecutor& its = of(executor);
      demand(its.unfinished.empty(), executor, "moves of steps {} are not finished", fmt::join(its.unfinished, " "));
      for (int number = 0; number < std::ssize(program_.steps()); ++number) {
        demand(device_of(participants(number), executor) < 0 || its.done.contains(number), executor, "step {} is missing",
               number);
      }
      for (const auto& [value, state] : its.values) {
        demand(kept.contains(value), executor, "value {} is never freed", value);
      }
      for (const int value : kept) {
        demand(device_of(group_of(value), executor) < 0 || its.values.contains(value), executor,
               "value {} is freed, and the client wants it", value);
      }
      const std::int64_t peak = peak_of(program_, plan_, executor);
      const std::int64_t stated = plan_.peak_bytes[static_cast<std::size_t>(executor)];
      demand(peak == stated, executor, "its values take {} bytes, and the plan says {}", peak, stated);
    }
  }

  const Program& program_;
  const ProgramPlan& plan_;
  std::vector<CheckedExecutor> executors_;
};

}  // namespace

void check(const Program& program, const ProgramPlan& plan) { Check(program, plan).run(); }

}  // namespace stretto
