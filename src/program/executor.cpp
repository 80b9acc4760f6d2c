#include "program/executor.hpp"

#include <algorithm>
#include <cstring>

#include "core/fail.hpp"
#include "program/plan_program.hpp"
#include "program/scheduler.hpp"

namespace stretto {
namespace {

// Ends the waits of a cancelled program.
struct Cancelled {};

constexpr double seconds_between_looks = 0.02;

thread_local const std::function<bool()>* is_cancelled = nullptr;

// While it lives, waits of this thread on the inline stream end when the program is cancelled.
class CancelScope {
 public:
  explicit CancelScope(const std::function<bool()>& cancelled) {
    is_cancelled = &cancelled;
    before_ = while_waiting({[] {
                               if ((*is_cancelled)()) throw Cancelled();
                             },
                             seconds_between_looks});
  }
  ~CancelScope() {
    while_waiting(before_);
    is_cancelled = nullptr;
  }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  Meanwhile before_;
};

template <class Body>
std::exception_ptr failure_of(Body body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

std::string sentence_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error_sentence(error);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

class Executor::OneRun {
 public:
  OneRun(Executor& executor, ExecutedProgram& program, const ReceivedMessage& grant)
      : executor_(executor),
        program_(program),
        grant_(grant),
        values_(program.setup.program.values().size()),
        cancelled_([this] { return executor_.inbox_.cancels(program_.number) > program_.cancels; }) {}

  void run() {
    failure_ = failure_of([&] {
      const CancelScope scope(cancelled_);
      take_inputs();
      const auto& list = program_.plan.lists[static_cast<std::size_t>(rank())];
      for (const ProgramAction& action : list) {
        stop_if_cancelled();
        act(action);
      }
    });
    // Another rank's failure shows here as an operation that ended, too.
    const bool is_own = failure_ && !cancelled_();
    if (is_own) executor_.report(ControlKind::run_failed, grant_, sentence());
    // What still travels ends, as the cancel that follows the report reaches this rank, too.
    for (const auto& [step, move] : moves_) move->work.wait();
    if (!failure_ && grant_.head.part == 1) {
      send_outputs();
      keep_values();
    }
    executor_.inbox_.drop_steps(program_.number, grant_.head.clock);
    if (grant_.head.part == 1) executor_.inbox_.drop_inputs(program_.number, grant_.head.request, grant_.head.request);
    values_.clear();
    if (!is_own) executor_.report(ControlKind::did_run, grant_);
  }

 private:
  struct StartedMove {
    Work work;
    std::exception_ptr failure;
  };

  int rank() const { return executor_.executors_.rank(); }
  const Program& program() const { return program_.setup.program; }
  const std::vector<int>& group_of(int value) const {
    return program_.plan.groups[static_cast<std::size_t>(program().values()[static_cast<std::size_t>(value)].group)];
  }
  bool has(int value) const { return device_of(group_of(value), rank()) >= 0; }
  Tensor& value(int number) { return values_[static_cast<std::size_t>(number)]; }

  void stop_if_cancelled() const {
    if (cancelled_()) throw Cancelled();
  }

  std::string sentence() const {
    const Program::Step* step = doing_ < 0 ? nullptr : &program().steps()[static_cast<std::size_t>(doing_)];
    const std::string what = step == nullptr ? "The start"
                             : step->kind == Program::StepKind::call
                                 ? "Function '" + step->function + "'"
                                 : "Step " + std::to_string(doing_) + " (" + step->function + ")";
    return fmt::format("{} of program '{}' of client '{}' failed in run {} on rank {}: {}", what, program().name(),
                       program_.setup.client, grant_.head.clock, rank(), sentence_of(failure_));
  }

  void take_inputs() {
    if (std::ranges::none_of(program().given(), [&](int input) { return has(input); })) return;
    const PackedParts parts = packed_parts(program(), program_.plan.groups, program().inputs(), rank(), false);
    const auto bytes = executor_.inbox_.inputs(program_.number, grant_.head.request, program_.cancels);
    if (!bytes) throw Cancelled();
    for (const PackedPart& part : parts.parts) {
      const DType dtype = program().values()[static_cast<std::size_t>(part.value)].type.dtype;
      value(part.value) =
          elements_of(part.shape) > 0 ? bytes->view(part.offset, part.shape, dtype) : Tensor(part.shape, dtype);
    }
    for (std::size_t k = 0; k < program().kept_inputs().size(); ++k) {
      const int input = program().kept_inputs()[k];
      if (!has(input)) continue;
      KeptName name;
      std::memcpy(name.data(), static_cast<const std::byte*>(bytes->raw()) + parts.bytes + k * sizeof(name), sizeof(name));
      value(input) = executor_.kept_.at(name);
    }
  }

  void make(int number) {
    const ValueType& type = program().values()[static_cast<std::size_t>(number)].type;
    const std::vector<int>& group = group_of(number);
    value(number) =
        Tensor(part_shape(type, static_cast<int>(group.size()), device_of(group, rank())), type.dtype, Device::cpu);
  }

  void act(const ProgramAction& action) {
    doing_ = action.step;
    const Program::Step& step = program().steps()[static_cast<std::size_t>(action.step)];
    const Dispatch dispatch = program_.setup.dispatch;
    if (dispatch != Dispatch::parallel && action.kind != ProgramAction::Kind::finish_move) {
      executor_.inbox_.await_step(program_.number, grant_.head.clock, action.step, program_.cancels);
      stop_if_cancelled();
    }
    if (dispatch == Dispatch::sequential && action.kind != ProgramAction::Kind::finish_move) report_step(action);
    for (const int made : action.makes) make(made);
    switch (action.kind) {
      case ProgramAction::Kind::call: call(step); break;
      case ProgramAction::Kind::reduce: reduce(step); break;
      case ProgramAction::Kind::start_move:
        start(action.step, step);
        if (dispatch == Dispatch::op_by_op) finish(action.step);
        break;
      case ProgramAction::Kind::finish_move: finish(action.step); break;
    }
    if (dispatch == Dispatch::op_by_op && action.kind != ProgramAction::Kind::finish_move) report_step(action);
    for (const int freed : action.frees) value(freed) = {};
  }

  void report_step(const ProgramAction& action) { executor_.report(ControlKind::did_step, grant_, "", action.step); }

  void call(const Program::Step& step) {
    FunctionCall call{.group = program_.groups[static_cast<std::size_t>(step.group)],
                      .argument = step.argument,
                      .run = grant_.head.clock,
                      .program = program().name(),
                      .client = program_.setup.client};
    for (const int input : step.inputs) call.inputs.push_back(value(input));
    for (const int output : step.outputs) call.outputs.push_back(value(output));
    executor_.functions_.at(step.function)(call);
  }

  void reduce(const Program::Step& step) {
    const Communicator& group = program_.groups[static_cast<std::size_t>(step.group)];
    const Tensor& from = value(step.inputs.front());
    const Tensor& to = value(step.outputs.front());
    const ValueType& type = program().values()[static_cast<std::size_t>(step.outputs.front())].type;
    if (type.placement.dimension < 0) {
      group.all_reduce(from.raw(), to.raw(), to.size(), to.dtype(), step.op, Stream::inline_()).wait();
    } else {
      std::vector<std::int64_t> counts;
      counts.reserve(static_cast<std::size_t>(group.size()));
      for (int i = 0; i < group.size(); ++i) counts.push_back(elements_of(part_shape(type, group.size(), i)));
      group.reduce_scatter_v(from.raw(), to.raw(), counts, to.dtype(), step.op, Stream::inline_()).wait();
    }
  }

  void start(int number, const Program::Step& step) {
    const auto part = [&](int which) { return has(which) && value(which).size() > 0 ? value(which) : Tensor(); };
    auto started = std::make_shared<StartedMove>();
    const Move& move =
        *program_.moves[static_cast<std::size_t>(program_.plan.move_of_step[static_cast<std::size_t>(number)])];
    started->work = executor_.moves_.enqueue(
        [this, &move, its = started.get(), from = part(step.inputs.front()), to = part(step.outputs.front())] {
          its->failure = failure_of([&] {
            const CancelScope scope(cancelled_);
            stop_if_cancelled();
            move.start({from}, {to}, Stream::inline_()).wait();
          });
        });
    moves_[number] = std::move(started);
  }

  void finish(int number) {
    const auto found = moves_.find(number);
    if (found == moves_.end()) return;
    const std::shared_ptr<StartedMove> move = found->second;
    move->work.wait();
    moves_.erase(number);
    if (move->failure) std::rethrow_exception(move->failure);
  }

  void send_outputs() {
    const PackedParts parts = packed_parts(program(), program_.plan.groups, program().outputs(), rank(), true);
    if (parts.parts.empty()) return;
    const Tensor bytes({static_cast<std::int64_t>(parts.bytes)}, DType::u8, Device::cpu);
    for (const PackedPart& part : parts.parts) {
      const Tensor& from = value(part.value);
      if (from.size() == 0) continue;
      std::copy_n(static_cast<const std::byte*>(from.raw()), from.bytes(),
                  static_cast<std::byte*>(bytes.raw()) + part.offset);
    }
    executor_.links_.send(
        program_.client,
        {.kind = static_cast<std::uint32_t>(ControlKind::outputs), .table = program_.number, .request = grant_.head.request},
        bytes);
  }

  void keep_values() {
    for (std::size_t k = 0; k < program().kept().size(); ++k) {
      const int kept = program().kept()[k];
      if (has(kept)) executor_.kept_[{program_.number, grant_.head.request, k}] = value(kept);
    }
  }

  Executor& executor_;
  ExecutedProgram& program_;
  const ReceivedMessage& grant_;
  std::vector<Tensor> values_;
  std::function<bool()> cancelled_;
  std::map<int, std::shared_ptr<StartedMove>> moves_;  // by step: not finished
  std::exception_ptr failure_;
  int doing_ = -1;  // a step
};

void Executor::report(ControlKind kind, const ReceivedMessage& grant, const std::string& text, std::int64_t step) {
  links_.send(0,
              {.kind = static_cast<std::uint32_t>(kind),
               .table = grant.head.table,
               .part = step,
               .clock = grant.head.clock,
               .request = grant.head.request},
              bytes_of(text));
}

void Executor::serve() {
  const auto say_goodbye = [&](int to) { links_.send(to, {.kind = static_cast<std::uint32_t>(ControlKind::goodbye)}); };
  while (true) {
    const ReceivedMessage message = inbox_.next();
    switch (static_cast<ControlKind>(message.head.kind)) {
      case ControlKind::setup: set_up(message); break;
      case ControlKind::grant: do_run(message); break;
      case ControlKind::drop: programs_.erase(message.head.table); break;
      case ControlKind::free:
        kept_.erase({message.head.table, message.head.request, static_cast<std::uint64_t>(message.head.part)});
        break;
      case ControlKind::repair: {
        ExecutedProgram& program = programs_.at(message.head.table);
        inbox_.drop_inputs(program.number, 0, message.head.request);
        program.cancels = message.head.clock;
        make_groups(program);
        break;
      }
      case ControlKind::goodbye:
        say_goodbye(message.from);
        if (message.from >= executors_.size() && --clients_ == 0 && executors_.rank() == 0) {
          for (int executor = 1; executor < executors_.size(); ++executor) say_goodbye(executor);
        }
        if (message.from == 0) scheduler_has_left_ = true;
        if (clients_ == 0 && scheduler_has_left_) return programs_.clear();
        break;
      default: ensure(false, "Rank {} sent an executor a message of kind {}.", message.from, message.head.kind);
    }
  }
}

void Executor::set_up(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_[message.head.table];
  program.number = message.head.table;
  program.client = static_cast<int>(message.head.part);
  program.setup = setup_from_text(text_of(message));
  program.plan = plan_program(program.setup.program, program.setup.groups, executors_.size(), executors_.nodes());
  std::vector<int> ranks;
  for (int executor = 0; executor < executors_.size(); ++executor) {
    if (!program.plan.lists[static_cast<std::size_t>(executor)].empty()) ranks.push_back(executor);
  }
  program.ranks = executors_.subgroup(ranks, program.setup.program.name());
  if (program.ranks) make_groups(program);
  report(ControlKind::ready, message, obstacle(program));
}

// Collective over the program's executors. A failed operation has left groups that are unusable: these are new.
void Executor::make_groups(ExecutedProgram& program) {
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

std::string Executor::obstacle(const ExecutedProgram& program) const {
  for (const Program::Step& step : program.setup.program.steps()) {
    const auto& group = program.plan.groups[static_cast<std::size_t>(step.group)];
    if (step.kind != Program::StepKind::call || device_of(group, executors_.rank()) < 0) continue;
    if (functions_.contains(step.function)) continue;
    std::string known;
    for (const auto& [name, function] : functions_) known += (known.empty() ? "'" : ", '") + name + "'";
    return fmt::format("Program '{}' calls function '{}', which rank {} does not have; it has {}.",
                       program.setup.program.name(), step.function, executors_.rank(), known.empty() ? "none" : known);
  }
  return "";
}

void Executor::do_run(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_.at(message.head.table);
  OneRun(*this, program, message).run();
}

}  // namespace stretto
