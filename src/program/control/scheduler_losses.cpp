// Scheduler: what ends with a client or an executor that is lost, or with a compile() that is cancelled.
#include <fmt/ranges.h>

#include <algorithm>

#include "core/fail.hpp"
#include "program/control/scheduler.hpp"
#include "stretto/stream.hpp"

namespace stretto {

std::vector<std::uint32_t> Scheduler::programs_of(const std::function<bool(const ScheduledProgram&)>& is_wanted) const {
  std::vector<std::uint32_t> numbers;
  for (const auto& [number, program] : programs_) {
    if (is_wanted(program)) numbers.push_back(number);
  }
  return numbers;
}

std::vector<int> Scheduler::live_executors() const {
  std::vector<int> live;
  for (int executor = 0; executor < executors_; ++executor) {
    if (!lost_executors_.contains(executor)) live.push_back(executor);
  }
  return live;
}

// Executors that prepare the program end that, and behind the last of them it is dropped.
void Scheduler::give_up(const ReceivedMessage& message) {
  const std::vector<std::uint32_t> found = programs_of([&](const ScheduledProgram& each) {
    return each.client == message.from && each.compile_request == message.head.request && !each.not_ready.empty();
  });
  if (found.empty()) return;  // the answer is on its way
  ScheduledProgram& program = programs_.at(found.front());
  const std::set<int> awaited = awaited_of(program);
  std::string news;
  for (const int executor : awaited) {
    const std::string its = links_.news_of(executor);
    if (!its.empty()) news += " " + its;
  }
  refuse(found.front(), ErrorCode::timeout,
         fmt::format("Program '{}' was cancelled when it had waited {:.0f} s for rank {} to prepare it{}{}",
                     program.setup.program.name(), now_seconds() - program.begun, fmt::join(awaited, ", "),
                     news.empty() ? "." : ":", news));
  program.is_given_up = true;
  const MessageHead head{.part = static_cast<int>(program.refusal_code), .request = program.compile_request};
  tell(program.client, ControlKind::refused, head, program.refusal);
}

// Inputs of runs that have begun may be lost with it, and nobody wants their results: they are cancelled.
void Scheduler::lose_client(int client, const std::string& how) {
  lost_clients_.insert(client);
  const std::vector<std::uint32_t> its = programs_of([&](const ScheduledProgram& each) { return each.client == client; });
  for (const std::uint32_t number : its) {
    ScheduledProgram& program = programs_.at(number);
    const std::string sentence =
        fmt::format("Client '{}' of program '{}' is lost: {}", program.setup.client, program.setup.program.name(), how);
    for (Submission& submission : program.submissions) submission.waiting = 0;
    if (!program.not_ready.empty()) {
      refuse(number, ErrorCode::peer_gave_up, sentence);  // dropped when all executors have answered
      continue;
    }
    cancel_runs(number, sentence, true);
    if (program.runs.empty()) drop(number);
  }
  if (its.empty()) forget_lost_client(client);  // else behind the last program that is dropped
}

// Behind its last program, whose runs may use what executors have of it.
void Scheduler::forget_lost_client(int client) {
  if (!programs_of([&](const ScheduledProgram& each) { return each.client == client; }).empty()) return;
  // Executor 0 is the last to hear it: it may say goodbye to the others at once, and they hear nothing behind that.
  const std::vector<int> live = live_executors();
  for (auto executor = live.rbegin(); executor != live.rend(); ++executor) {
    tell(*executor, ControlKind::no_client, {.part = client});
  }
}

void Scheduler::lose_executor(int executor, const std::string& how) {
  lost_executors_[executor] = how;
  for (const std::uint32_t number : programs_of([](const ScheduledProgram&) { return true; })) {
    lose_executor_of(number, executor, how);
  }
}

void Scheduler::lose_executor_of(std::uint32_t number, int executor, const std::string& how) {
  ScheduledProgram& program = programs_.at(number);
  const bool needs_it = std::ranges::find(program.executors, executor) != program.executors.end();
  if (!needs_it) return;
  if (program.lost.executor < 0) program.lost = {executor, how};
  if (!program.not_ready.empty()) {
    program.not_ready.erase(executor);
    refuse(number, ErrorCode::peer_gave_up,
           fmt::format("Program '{}' cannot be prepared on rank {}: {}", program.setup.program.name(), executor, how));
    if (program.not_ready.empty()) answer_compile(number);
    return;
  }
  cancel_runs(number, sentence_of(program, program.lost), true);
  if (program.runs.empty()) return end_failed(number);  // all runs wait for others to begin, or there are none
  std::vector<std::int64_t> waiting;
  for (const auto& [clock, run] : program.runs) {
    if (run.missing.contains(executor)) waiting.push_back(clock);
  }
  for (const std::int64_t clock : waiting) did_run(number, clock, executor);
}

// The functions that need the executor, by name.
std::string Scheduler::sentence_of(const ScheduledProgram& program, const Lost& lost) {
  std::vector<std::string> names;
  const std::vector<Program::Step>& steps = program.setup.program.steps();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string name = "'" + steps[i].function + "'";
    const bool is_there = std::ranges::find(program.of_step[i], lost.executor) != program.of_step[i].end();
    const bool is_new = std::ranges::find(names, name) == names.end();
    if (steps[i].kind == Program::StepKind::call && is_there && is_new) names.push_back(name);
  }
  return fmt::format(
      "{} of program '{}' of client '{}' failed in run {} on rank {}: {}",
      names.empty() ? "A step" : fmt::format("Function{} {}", names.size() > 1 ? "s" : "", fmt::join(names, ", ")),
      program.setup.program.name(), program.setup.client,
      program.runs.empty() ? program.next_run : program.runs.begin()->first, lost.executor, lost.how);
}

}  // namespace stretto
