#include "program/control/scheduler.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr int least_depth = 2;  // runs that an executor has at a time, so that it never waits for the next one

}  // namespace

void Scheduler::tell(int to, ControlKind kind, MessageHead head, const std::string& text) {
  if (lost_executors_.contains(to) || lost_clients_.contains(to)) return;
  head.kind = static_cast<std::uint32_t>(kind);
  links_.send(to, head, bytes_of(text));
}

void Scheduler::handle(const ReceivedMessage& message) {
  const std::lock_guard lock(mutex_);
  switch (static_cast<ControlKind>(message.head.kind)) {
    case ControlKind::compile: compile(message); break;
    case ControlKind::give_up: give_up(message); break;
    case ControlKind::submit: submit(message); break;
    case ControlKind::abandon: abandon(message.from); break;
    case ControlKind::drop: drop(message.head.table); break;
    case ControlKind::place: got_place(message); break;
    case ControlKind::ready: ready(message); break;
    case ControlKind::did_step: did_step(message); break;
    case ControlKind::run_failed: cancel_runs(message.head.table, text_of(message)); [[fallthrough]];
    case ControlKind::did_run:
      busy_seconds_[{message.from, programs_.at(message.head.table).client}].add(
          now_seconds(), 1e-6 * static_cast<double>(message.head.part));
      did_run(message.head.table, message.head.clock, message.from);
      break;
    case ControlKind::lost:
      message.from < executors_ ? lose_executor(message.from, text_of(message))
                                : lose_client(message.from, text_of(message));
      break;
    default: ensure(false, "Rank {} sent the scheduler a message of kind {}.", message.from, message.head.kind);
  }
  grant_what_can_begin();
}

// A group lies on one node if one has enough executors. Among executors, those with the fewest devices come first.
std::vector<std::vector<int>> Scheduler::bind(const Program& program) const {
  std::vector<int> bound = bound_;
  std::vector<std::vector<int>> groups;
  for (const int devices : program.groups()) {
    std::vector<int> all = live_executors();
    require(devices <= executors_, "A group of program '{}' has {} devices; there are {} executors.", program.name(),
            devices, executors_);
    if (devices > std::ssize(all)) {
      std::string losses;
      for (const auto& [executor, sentence] : lost_executors_) losses += (losses.empty() ? "" : " ") + sentence;
      fail(ErrorCode::peer_gave_up, "A group of program '{}' has {} devices; of {} executors, {} are left: {}",
           program.name(), devices, executors_, all.size(), losses);
    }
    const auto devices_of = [&](int executor) { return bound[static_cast<std::size_t>(executor)]; };
    std::ranges::stable_sort(all, {}, devices_of);
    std::vector<int> best(all.begin(), all.begin() + devices);
    bool found = false;
    int least = 0;
    for (const int node : std::set<int>(nodes_.begin(), nodes_.end())) {
      std::vector<int> here;
      int sum = 0;
      for (const int executor : all) {
        if (nodes_[static_cast<std::size_t>(executor)] != node || std::ssize(here) == devices) continue;
        here.push_back(executor);
        sum += devices_of(executor);
      }
      if (std::ssize(here) < devices || (found && sum >= least)) continue;
      found = true;
      least = sum;
      best = here;
    }
    std::ranges::sort(best);
    for (const int executor : best) ++bound[static_cast<std::size_t>(executor)];
    groups.push_back(std::move(best));
  }
  return groups;
}

void Scheduler::compile(const ReceivedMessage& message) {
  ScheduledProgram program;
  program.client = message.from;
  program.compile_request = message.head.request;
  program.setup = setup_from_text(text_of(message));
  const auto [client, is_new] = clients_.try_emplace(message.from);
  if (is_new) client->second = {order_.add(program.setup.weight), program.setup.client, program.setup.weight};
  try {
    program.setup.groups = bind(program.setup.program);
    const ProgramPlan plan = plan_program(program.setup.program, program.setup.groups, executors_, nodes_);
    check(program.setup.program, plan);
    program.of_step.resize(program.setup.program.steps().size());
    for (int executor = 0; executor < executors_; ++executor) {
      const auto& list = plan.lists[static_cast<std::size_t>(executor)];
      if (!list.empty()) program.executors.push_back(executor);
      for (const ProgramAction& action : list) {
        if (action.kind != ProgramAction::Kind::finish_move) {
          program.of_step[static_cast<std::size_t>(action.step)].push_back(executor);
        }
      }
    }
    require(!program.executors.empty(), "Program '{}' has no steps.", program.setup.program.name());
  } catch (const Error& error) {
    const MessageHead head{.part = static_cast<int>(error.code()), .request = message.head.request};
    return tell(message.from, ControlKind::refused, head, error.what());
  }
  for (const auto& group : program.setup.groups) {
    for (const int executor : group) ++bound_[static_cast<std::size_t>(executor)];
  }
  program.not_ready = {program.executors.begin(), program.executors.end()};
  program.begun = now_seconds();
  const std::uint32_t number = next_program_++;
  const std::string text = to_text(program.setup);
  const std::vector<int>& its = programs_.emplace(number, std::move(program)).first->second.executors;
  for (const int executor : its) tell(executor, ControlKind::setup, {.table = number, .part = message.from}, text);
}

std::set<int> Scheduler::awaited_of(const ScheduledProgram& program) {
  std::set<int> awaited = program.not_ready;
  for (const auto& [executor, place] : program.places) awaited.erase(executor);
  return awaited;
}

// Executors make the program's group by the places of all. None of them waits for another one meanwhile, so that one that is
// lost then holds nobody up.
void Scheduler::got_place(const ReceivedMessage& message) {
  ScheduledProgram& program = programs_.at(message.head.table);
  const MessageHead head{.kind = static_cast<std::uint32_t>(ControlKind::places), .table = message.head.table};
  if (!program.refusal.empty()) return links_.send(message.from, head);
  program.places[message.from] = message.bytes;
  if (program.places.size() < program.executors.size()) return;
  std::string all;
  for (const auto& [executor, place] : program.places) {
    all.append(static_cast<const char*>(place.raw()), place.bytes());
  }
  program.places.clear();
  program.makes_groups = true;
  for (const int executor : program.executors) links_.send(executor, head, bytes_of(all));
}

void Scheduler::ready(const ReceivedMessage& message) {
  ScheduledProgram& program = programs_.at(message.head.table);
  program.not_ready.erase(message.from);
  const std::string obstacle = text_of(message);
  if (!obstacle.empty()) refuse(message.head.table, static_cast<ErrorCode>(message.head.part), obstacle);
  if (program.not_ready.empty()) answer_compile(message.head.table);
}

void Scheduler::refuse(std::uint32_t number, ErrorCode code, const std::string& sentence) {
  ScheduledProgram& program = programs_.at(number);
  if (!program.refusal.empty()) return;
  program.refusal = sentence;
  program.refusal_code = code;
  for (const auto& [waits, place] : program.places) tell(waits, ControlKind::places, {.table = number});
  program.places.clear();
  if (!program.makes_groups) return;
  ++program.cancels;
  for (const int executor : program.not_ready) {
    tell(executor, ControlKind::cancel, {.table = number, .part = 1, .clock = program.cancels});
  }
}

void Scheduler::answer_compile(std::uint32_t number) {
  const ScheduledProgram& program = programs_.at(number);
  const MessageHead head{
      .table = number, .part = static_cast<int>(program.refusal_code), .request = program.compile_request};
  if (program.refusal.empty()) return tell(program.client, ControlKind::compiled, head, to_text(program.setup));
  if (!program.is_given_up) tell(program.client, ControlKind::refused, head, program.refusal);
  drop(number);
}

bool Scheduler::has_waiting_runs(int client) const {
  return std::ranges::any_of(programs_, [&](const auto& each) {
    return each.second.client == client &&
           std::ranges::any_of(each.second.submissions, [](const Submission& its) { return its.waiting > 0; });
  });
}

void Scheduler::submit(const ReceivedMessage& message) {
  if (!has_waiting_runs(message.from)) order_.comes_back(clients_.at(message.from).in_order);
  ScheduledProgram& program = programs_.at(message.head.table);
  if (program.lost.executor < 0) return program.submissions.push_back({message.head.request, message.head.part, 0});
  const MessageHead head{.table = message.head.table, .request = message.head.request};
  tell(program.client, ControlKind::failed, head, sentence_of(program, program.lost));
}

void Scheduler::grant_what_can_begin() {
  while (true) {
    std::vector<StrideOrder::Candidate> candidates;
    std::vector<std::uint32_t> numbers;
    for (const auto& [number, program] : programs_) {
      const bool waits = std::ranges::any_of(program.submissions, [](const Submission& its) { return its.waiting > 0; });
      if (!waits || !program.failure.empty() || program.lost.executor >= 0 ||
          std::ssize(program.runs) >= program.setup.most_in_flight)
        continue;
      candidates.push_back({clients_.at(program.client).in_order, program.executors});
      numbers.push_back(number);
    }
    const auto chosen = order_.next(candidates, [&](std::size_t i) {
      const ScheduledProgram& program = programs_.at(numbers[i]);
      return std::ranges::all_of(program.executors, [&](int executor) {
        return load_[static_cast<std::size_t>(executor)] < std::max(least_depth, program.setup.most_in_flight);
      });
    });
    if (!chosen) return;
    begin_run(numbers[*chosen]);
  }
}

void Scheduler::begin_run(std::uint32_t number) {
  ScheduledProgram& program = programs_.at(number);
  Submission& submission = *std::ranges::find_if(program.submissions, [](const Submission& its) { return its.waiting > 0; });
  --submission.waiting;
  ++submission.under_way;
  const std::int64_t run = program.next_run++;
  program.runs[run] = {submission.request,
                       {program.executors.begin(), program.executors.end()},
                       0,
                       {program.of_step.front().begin(), program.of_step.front().end()}};
  const MessageHead head{
      .table = number, .part = submission.waiting == 0 ? 1 : 0, .clock = run, .request = submission.request};
  for (const int executor : program.executors) {
    ++load_[static_cast<std::size_t>(executor)];
    tell(executor, ControlKind::grant, head);
  }
}

void Scheduler::did_step(const ReceivedMessage& message) {
  ScheduledProgram& program = programs_.at(message.head.table);
  Run& run = program.runs.at(message.head.clock);
  if (message.head.part != run.step) return;
  run.missing_in_step.erase(message.from);
  if (!run.missing_in_step.empty() || ++run.step == std::ssize(program.of_step)) return;
  const std::vector<int>& next = program.of_step[static_cast<std::size_t>(run.step)];
  run.missing_in_step = {next.begin(), next.end()};
  for (const int executor : next) {
    tell(executor, ControlKind::go_on, {.table = message.head.table, .part = run.step, .clock = message.head.clock});
  }
}

void Scheduler::cancel_runs(std::uint32_t number, const std::string& sentence, bool for_good) {
  ScheduledProgram& program = programs_.at(number);
  if (!program.failure.empty() && !for_good) return;
  if (program.failure.empty()) program.failure = sentence;
  ++program.cancels;
  for (const int executor : program.executors) {
    tell(executor, ControlKind::cancel, {.table = number, .part = for_good ? 1 : 0, .clock = program.cancels});
  }
}

void Scheduler::did_run(std::uint32_t number, std::int64_t clock, int executor) {
  ScheduledProgram& program = programs_.at(number);
  --load_[static_cast<std::size_t>(executor)];
  Run& run = program.runs.at(clock);
  run.missing.erase(executor);
  if (!run.missing.empty()) return;
  const auto its = std::ranges::find(program.submissions, run.request, &Submission::request);
  program.runs.erase(clock);
  ++clients_.at(program.client).runs;
  if (its != program.submissions.end()) --its->under_way;
  if (!program.failure.empty()) {
    if (program.runs.empty()) end_failed(number);
  } else if (its->under_way == 0 && its->waiting == 0) {
    const MessageHead head{.table = number, .request = its->request};
    its->was_cut ? tell_of_cut(program, head) : tell(program.client, ControlKind::finished, head);
    program.submissions.erase(its);
  }
}

void Scheduler::end_failed(std::uint32_t number) {
  ScheduledProgram& program = programs_.at(number);
  if (lost_clients_.contains(program.client)) return drop(number);
  std::uint64_t last = 0;
  for (const Submission& submission : program.submissions) last = std::max(last, submission.request);
  for (const int executor : program.executors) {
    tell(executor, ControlKind::repair, {.table = number, .clock = program.cancels, .request = last});
  }
  for (const Submission& submission : program.submissions) {
    tell(program.client, ControlKind::failed, {.table = number, .request = submission.request}, program.failure);
  }
  program.submissions.clear();
  program.failure.clear();
}

void Scheduler::tell_of_cut(const ScheduledProgram& program, const MessageHead& head) {
  tell(program.client, ControlKind::failed, head,
       fmt::format("Client '{}' left before all runs of program '{}' that it had asked for had begun; wait for them before "
                   "it leaves.",
                   program.setup.client, program.setup.program.name()));
}

void Scheduler::abandon(int client) {
  std::vector<std::uint32_t> idle;
  for (auto& [number, program] : programs_) {
    if (program.client != client) continue;
    for (Submission& submission : program.submissions) {
      if (submission.waiting > 0) submission.was_cut = true;
      submission.waiting = 0;
    }
    std::erase_if(program.submissions, [&, number = number, &program = program](const Submission& submission) {
      if (submission.under_way > 0) return false;
      tell_of_cut(program, {.table = number, .request = submission.request});
      return true;
    });
    if (program.submissions.empty() && program.not_ready.empty()) idle.push_back(number);
  }
  for (const std::uint32_t number : idle) drop(number);
}

// Executors come to it behind the program's last run.
void Scheduler::drop(std::uint32_t number) {
  if (!programs_.contains(number)) return;  // its client has left
  const ScheduledProgram program = std::move(programs_.at(number));
  programs_.erase(number);
  for (const auto& group : program.setup.groups) {
    for (const int executor : group) --bound_[static_cast<std::size_t>(executor)];
  }
  for (const int executor : program.executors) tell(executor, ControlKind::drop, {.table = number});
  if (lost_clients_.contains(program.client)) forget_lost_client(program.client);
}

}  // namespace stretto
