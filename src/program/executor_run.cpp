// What an executor does for one run.
#include <algorithm>
#include <cstring>
#include <tuple>

#include "core/fail.hpp"
#include "program/control/look_scope.hpp"
#include "program/executor.hpp"

namespace stretto {
namespace {

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
      : executor_(executor), program_(program), grant_(grant), values_(program.setup.program.values().size()) {}

  OneRun(const OneRun&) = delete;
  OneRun& operator=(const OneRun&) = delete;
  // Moves use this object. They have ended before, unless the job is lost: then they end by that.
  ~OneRun() {
    std::ignore = failure_of([&] { wait_for_moves(); });
  }

  void run() {
    failure_ = failure_of([&] {
      const LookScope scope([this] { stop_if_cancelled(); }, seconds_between_looks);
      if (program_.obstacle) throw *program_.obstacle;
      take_inputs();
      const auto& list = program_.plan.lists[static_cast<std::size_t>(rank())];
      for (const ProgramAction& action : list) {
        stop_if_cancelled();
        act(action);
      }
    });
    // Another rank's failure shows here as an operation that ended, too.
    const bool is_own = failure_ && !is_cancelled();
    if (is_own) executor_.report(ControlKind::run_failed, grant_, sentence(), microseconds());
    // What still travels ends, as the cancel that follows the report reaches this rank, too.
    wait_for_moves();
    if (!failure_ && grant_.head.part == 1) {
      send_outputs();
      keep_values();
    }
    executor_.inbox_.drop_steps(program_.number, grant_.head.clock);
    if (grant_.head.part == 1) executor_.inbox_.drop_inputs(program_.number, grant_.head.request, grant_.head.request);
    values_.clear();
    if (!is_own) executor_.report(ControlKind::did_run, grant_, "", microseconds());
  }

 private:
  struct StartedMove {
    Work work;
    std::exception_ptr failure;
  };

  std::int64_t microseconds() const { return static_cast<std::int64_t>(1e6 * (now_seconds() - begun_)); }
  int rank() const { return executor_.executors_.rank(); }
  const Program& program() const { return program_.setup.program; }
  const std::vector<int>& group_of(int value) const {
    return program_.plan.groups[static_cast<std::size_t>(program().values()[static_cast<std::size_t>(value)].group)];
  }
  bool has(int value) const { return device_of(group_of(value), rank()) >= 0; }
  Tensor& value(int number) { return values_[static_cast<std::size_t>(number)]; }

  bool is_cancelled() const { return executor_.inbox_.cancels(program_.number) > program_.cancels; }
  void stop_if_cancelled() const {
    if (is_cancelled()) throw Cancelled();
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
          element_count(part.shape) > 0 ? bytes->view(part.offset, part.shape, dtype) : Tensor(part.shape, dtype);
    }
    for (std::size_t k = 0; k < program().kept_inputs().size(); ++k) {
      const int input = program().kept_inputs()[k];
      if (!has(input)) continue;
      KeptName name;
      std::memcpy(name.data(), static_cast<const std::byte*>(bytes->raw()) + parts.bytes + k * sizeof(name), sizeof(name));
      value(input) = executor_.kept_.at(name).part;
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
      for (int i = 0; i < group.size(); ++i) counts.push_back(element_count(part_shape(type, group.size(), i)));
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
            const LookScope scope([this] { stop_if_cancelled(); }, seconds_between_looks);
            stop_if_cancelled();
            move.start({from}, {to}, Stream::inline_()).wait();
          });
        });
    moves_[number] = std::move(started);
  }

  void wait_for_moves() const {
    for (const auto& [step, move] : moves_) move->work.wait();
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
      if (has(kept)) executor_.kept_[{program_.number, grant_.head.request, k}] = {value(kept), program_.client};
    }
  }

  Executor& executor_;
  ExecutedProgram& program_;
  const ReceivedMessage& grant_;
  std::vector<Tensor> values_;
  std::map<int, std::shared_ptr<StartedMove>> moves_;  // by step: not finished
  std::exception_ptr failure_;
  int doing_ = -1;  // a step
  double begun_ = now_seconds();
};

void Executor::do_run(const ReceivedMessage& message) {
  ExecutedProgram& program = programs_.at(message.head.table);
  OneRun(*this, program, message).run();
}

}  // namespace stretto
