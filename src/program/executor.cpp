#include "program/executor.hpp"

#include <algorithm>
#include <cstring>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "program/control/look_scope.hpp"
#include "program/plan_program.hpp"

namespace stretto {

void Executor::report(ControlKind kind, const ReceivedMessage& grant, const std::string& text, std::int64_t part) {
  links_.send(0,
              {.kind = static_cast<std::uint32_t>(kind),
               .table = grant.head.table,
               .part = part,
               .clock = grant.head.clock,
               .request = grant.head.request},
              bytes_of(text));
}

void Executor::report_ready(const ReceivedMessage& message, const std::optional<Error>& obstacle) {
  report(ControlKind::ready, message, obstacle ? obstacle->what() : "", obstacle ? static_cast<int>(obstacle->code()) : 0);
}

void Executor::serve() {
  while (true) {
    const ReceivedMessage message = inbox_.next();
    switch (static_cast<ControlKind>(message.head.kind)) {
      case ControlKind::setup: set_up(message); break;
      case ControlKind::places: set_up_group(message); break;
      case ControlKind::grant: do_run(message); break;
      case ControlKind::drop:
        programs_.erase(message.head.table);
        inbox_.drop(message.head.table);
        break;
      case ControlKind::free:
        kept_.erase({message.head.table, message.head.request, static_cast<std::uint64_t>(message.head.part)});
        break;
      case ControlKind::repair: repair(message); break;
      case ControlKind::goodbye:
        say_goodbye(message.from);
        if (message.from == 0) scheduler_has_left_ = true;
        forget_client(message.from);
        break;
      case ControlKind::no_client: forget_client(static_cast<int>(message.head.part)); break;
      default: ensure(false, "Rank {} sent an executor a message of kind {}.", message.from, message.head.kind);
    }
    if (clients_.empty() && scheduler_has_left_) return programs_.clear();
  }
}

// It has left, or is lost. Behind the last one, the scheduler says goodbye to the other executors.
void Executor::forget_client(int client) {
  std::erase_if(kept_, [&](const auto& each) { return each.second.client == client; });
  inbox_.drop_inputs_of(client);
  if (clients_.erase(client) == 0 || !clients_.empty() || executors_.rank() != 0) return;
  for (int executor = 1; executor < executors_.size(); ++executor) say_goodbye(executor);
}

void Executor::say_goodbye(int to) { links_.send(to, {.kind = static_cast<std::uint32_t>(ControlKind::goodbye)}); }

void Executor::set_up(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_[message.head.table];
  program.number = message.head.table;
  program.client = static_cast<int>(message.head.part);
  program.setup = setup_from_text(text_of(message));
  program.plan = plan_program(program.setup.program, program.setup.groups, executors_.size(), executors_.nodes());
  Communicator::Group::Place place;
  try {
    place = Communicator::Group::reserve_place(Communicator::Group::of(executors_).context(), executors_.size());
  } catch (const Error& error) {
    return report_ready(message, error);
  }
  program.place = Tensor({sizeof place}, DType::u8, Device::cpu);
  std::memcpy(program.place.raw(), &place, sizeof place);
  links_.send(0, {.kind = static_cast<std::uint32_t>(ControlKind::place), .table = program.number}, program.place);
}

void Executor::set_up_group(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_.at(message.head.table);
  if (!message.bytes) {  // the scheduler has refused the program
    Communicator::Group::Place place;
    std::memcpy(&place, program.place.raw(), sizeof place);
    RankContext& context = Communicator::Group::of(executors_).context();
    context.network().segment().release(place.area, Links::area_bytes(executors_.size()));
    return report_ready(message, std::nullopt);
  }
  std::vector<Communicator::Group::Place> places(message.bytes.bytes() / sizeof(Communicator::Group::Place));
  std::memcpy(places.data(), message.bytes.raw(), message.bytes.bytes());
  make_groups(program, [&] {
    program.ranks = Communicator(Communicator::Group::at_places(Communicator::Group::of(executors_).shared_context(), places,
                                                                executors_.size(), program.setup.program.name()));
    make_groups_of_ranks(program);
  });
  report_ready(message, obstacle(program));
}

void Executor::repair(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_.at(message.head.table);
  program.cancels = message.head.clock;
  if (inbox_.has_ended(program.number)) {
    program.groups.clear();
    program.moves.clear();
    return;
  }
  inbox_.drop_inputs(program.number, 0, message.head.request);
  make_groups(program, [&] { make_groups_of_ranks(program); });
}

void Executor::make_groups(ExecutedProgram& program, const std::function<void()>& make) {
  program.obstacle.reset();
  try {
    // A cancel that the next repair follows must not end this on one rank alone: that repair needs program.ranks on all.
    const LookScope scope(
        [&] {
          if (inbox_.has_ended(program.number)) throw Cancelled();
        },
        seconds_between_looks);
    make();
  } catch (const Cancelled&) {
    program.obstacle = Error(ErrorCode::peer_gave_up, fmt::format("Program '{}' was given up while its groups were made.",
                                                                  program.setup.program.name()));
  } catch (const Error& error) {
    executors_.job().check_ranks();  // throws if all programs end
    program.obstacle = Error(error.is_of_another_rank() ? ErrorCode::peer_gave_up : error.code(),
                             fmt::format("Program '{}' cannot be prepared on rank {}: {}", program.setup.program.name(),
                                         executors_.rank(), error.what()));
  }
}

// Collective over the program's executors. A failed operation has left groups that are unusable: these are new.
void Executor::make_groups_of_ranks(ExecutedProgram& program) {
  const std::vector<int>& all = program.ranks.job_ranks();
  const auto places = [&](const std::vector<int>& executors) {
    std::vector<int> result;
    for (const int executor : executors) {
      const int job_rank = executors_.job_ranks()[static_cast<std::size_t>(executor)];
      result.push_back(static_cast<int>(std::ranges::find(all, job_rank) - all.begin()));
    }
    return result;
  };
  program.groups.clear();
  program.moves.clear();
  const std::string& name = program.setup.program.name();
  std::vector<bool> is_used(program.plan.groups.size());
  for (const Program::Step& step : program.setup.program.steps()) {
    if (step.kind != Program::StepKind::move) is_used[static_cast<std::size_t>(step.group)] = true;
  }
  for (std::size_t g = 0; g < program.plan.groups.size(); ++g) {
    program.groups.push_back(is_used[g] ? program.ranks.subgroup(places(program.plan.groups[g]), name) : Communicator());
  }
  std::map<std::vector<int>, Communicator> of_moves;  // moves of the same executors come one after the other
  for (const ProgramPlan::PlannedMove& move : program.plan.moves) {
    const auto [found, is_new] = of_moves.try_emplace(move.ranks);
    if (is_new) found->second = program.ranks.subgroup(places(move.ranks), name + ": moves");
    program.moves.push_back(found->second ? std::make_unique<Move>(found->second, move.plan) : nullptr);
  }
}

std::optional<Error> Executor::obstacle(const ExecutedProgram& program) const {
  if (program.obstacle) return program.obstacle;
  for (const Program::Step& step : program.setup.program.steps()) {
    const auto& group = program.plan.groups[static_cast<std::size_t>(step.group)];
    if (step.kind != Program::StepKind::call || device_of(group, executors_.rank()) < 0) continue;
    if (functions_.contains(step.function)) continue;
    std::string known;
    for (const auto& [name, function] : functions_) known += (known.empty() ? "'" : ", '") + name + "'";
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("Program '{}' calls function '{}', which rank {} does not have; it has {}.",
                    program.setup.program.name(), step.function, executors_.rank(), known.empty() ? "none" : known));
  }
  return std::nullopt;
}

}  // namespace stretto
