#include "program/client.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/fail.hpp"
#include "program/control/scheduler.hpp"
#include "program/move/box.hpp"
#include "program/packed_parts.hpp"

namespace stretto {
namespace {

constexpr double seconds_to_answer = 1;  // of the scheduler, when compile() is cancelled

// Calls copy(offset in the whole, offset in the part, bytes) for each run of elements of a device's part.
template <class Copy>
void for_each_run(const Program::TypedValue& value, int devices, int device, Copy copy) {
  std::vector<int> places(static_cast<std::size_t>(devices));
  std::iota(places.begin(), places.end(), 0);
  const Division division = division_of(value.type, places);
  const std::size_t width = size_of(value.type.dtype);
  std::size_t done = 0;
  for (const Box& box : division.boxes[static_cast<std::size_t>(device)]) {
    if (box.elements() == 0) continue;
    for (const Run& run : runs(whole(value.type.shape), box)) {
      const std::size_t bytes = static_cast<std::size_t>(run.count) * width;
      copy(static_cast<std::size_t>(run.offset) * width, done, bytes);
      done += bytes;
    }
  }
}

// Executors that do nothing get no runs, and neither keep nor send what they have.
void refuse_idle_groups(const Client::Compiled& compiled) {
  const Program& program = compiled.setup.program;
  const auto refuse = [&](int value, const char* does) {
    const int group = program.values()[static_cast<std::size_t>(value)].group;
    for (const int executor : compiled.plan.groups[static_cast<std::size_t>(group)]) {
      require(!compiled.plan.lists[static_cast<std::size_t>(executor)].empty(),
              "Program '{}' {} a value on a group that does nothing; call a function there, or move it.", program.name(),
              does);
    }
  };
  for (const int value : program.kept()) refuse(value, "keeps");
  for (const int value : program.outputs()) {
    if (std::ranges::find(program.kept_inputs(), value) != program.kept_inputs().end()) refuse(value, "outputs");
  }
}

}  // namespace

Client::Compiled::~Compiled() {
  if (const auto its = client.lock()) its->drop(*this);
}

KeptValue::State::~State() {
  if (const auto its = client.lock()) its->free(*this);
}

void Client::send(int to, ControlKind kind, MessageHead head, const Tensor& bytes) {
  head.kind = static_cast<std::uint32_t>(kind);
  links_.send(to, head, bytes);
}

void Client::lose(const std::exception_ptr& why) {
  const std::lock_guard lock(mutex_);
  loss_ = why;
  has_left_ = true;  // executors may still be in what is dropped here
  for (auto& [request, run] : runs_) {
    const std::lock_guard run_lock(run.state->mutex);
    run.state->loss = why;
    run.state->changed.notify_all();
  }
  runs_.clear();
  changed_.notify_all();
}

void Client::end(std::uint64_t request) {
  const auto found = runs_.find(request);
  if (found == runs_.end()) return;
  over_.push_back(std::move(found->second));
  runs_.erase(found);
}

void Client::let_go() {
  std::vector<OpenRun> over;
  std::vector<std::uint32_t> unwanted;
  {
    const std::lock_guard lock(mutex_);
    over.swap(over_);
    unwanted.swap(unwanted_);
  }
  for (const std::uint32_t number : unwanted) send(0, ControlKind::drop, {.table = number});
}

void Client::handle(const ReceivedMessage& message) {
  const std::lock_guard lock(mutex_);
  const auto kind = static_cast<ControlKind>(message.head.kind);
  if (kind == ControlKind::goodbye) return;
  if (kind == ControlKind::compiled || kind == ControlKind::refused) {
    if (message.head.request == compiling_) {
      answer_ = message;
      changed_.notify_all();
    } else if (kind == ControlKind::compiled) {
      unwanted_.push_back(message.head.table);
    }
    return;
  }
  if (kind == ControlKind::lost) return lose_executor(message.from, text_of(message));
  const auto found = runs_.find(message.head.request);
  if (found != runs_.end()) take(message, found->second);  // else parts of the outputs of a run that has failed
}

void Client::take(const ReceivedMessage& message, OpenRun& run) {
  const auto kind = static_cast<ControlKind>(message.head.kind);
  const std::shared_ptr<ProgramRun::State> held = run.state;
  ProgramRun::State& state = *held;
  const std::lock_guard run_lock(state.mutex);
  if (kind == ControlKind::outputs) {
    take_outputs(run, message);
    state.missing.erase(message.from);
  } else if (kind == ControlKind::failed) {
    state.failure = text_of(message);
  } else {
    state.finished = true;
  }
  fail_without_outputs(run);
  if (state.is_done()) {
    state.changed.notify_all();
    end(message.head.request);
  }
  changed_.notify_all();
}

void Client::lose_executor(int executor, const std::string& how) {
  lost_executors_[executor] = how;
  std::vector<std::uint64_t> over;
  for (const auto& [request, run] : runs_) {
    const std::lock_guard run_lock(run.state->mutex);
    fail_without_outputs(run);
    if (!run.state->is_done()) continue;  // the scheduler has the last word
    run.state->changed.notify_all();
    over.push_back(request);
  }
  for (const std::uint64_t request : over) end(request);
  changed_.notify_all();
}

void Client::fail_without_outputs(const OpenRun& run) const {
  ProgramRun::State& state = *run.state;
  for (const auto& [executor, how] : lost_executors_) {
    if (!state.finished || !state.missing.contains(executor)) continue;
    state.failure = fmt::format("Outputs of program '{}' of client '{}' are lost with rank {}: {}",
                                run.program->setup.program.name(), run.program->setup.client, executor, how);
  }
}

void Client::take_outputs(const OpenRun& run, const ReceivedMessage& message) const {
  const Program& program = run.program->setup.program;
  const auto& groups = run.program->plan.groups;
  for (const PackedPart& part : packed_parts(program, groups, program.outputs(), message.from, true).parts) {
    const Program::TypedValue& value = program.values()[static_cast<std::size_t>(part.value)];
    const int devices = static_cast<int>(groups[static_cast<std::size_t>(value.group)].size());
    for (std::size_t o = 0; o < program.outputs().size(); ++o) {
      if (program.outputs()[o] != part.value) continue;
      auto* const to = static_cast<std::byte*>(run.state->outputs[o].raw());
      const auto* const from = static_cast<const std::byte*>(message.bytes.raw()) + part.offset;
      for_each_run(value, devices, part.device, [&](std::size_t in_whole, std::size_t in_part, std::size_t bytes) {
        std::memcpy(to + in_whole, from + in_part, bytes);
      });
    }
  }
}

// A cancelled client waits for the scheduler's answer, which names the missing executors; a stopped scheduler gives none.
ReceivedMessage Client::answer_to_compile(const std::string& name, std::uint64_t request, const std::stop_token& cancelled) {
  const auto wakes = [this] {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  };
  const std::stop_callback wake(cancelled, wakes);
  std::unique_lock lock(mutex_);
  const auto is_answered = [&] { return loss_ || answer_; };
  changed_.wait(lock, [&] { return is_answered() || cancelled.stop_requested(); });
  if (!is_answered()) {
    lock.unlock();
    send(0, ControlKind::give_up, {.request = request});
    lock.lock();
    changed_.wait_for(lock, std::chrono::duration<double>(seconds_to_answer), is_answered);
  }
  compiling_ = 0;
  if (loss_) std::rethrow_exception(loss_);
  if (answer_) return *std::exchange(answer_, std::nullopt);
  lock.unlock();
  const std::string news = links_.news_of(0);
  fail(ErrorCode::timeout, "Program '{}' was cancelled, and rank 0, which has the scheduler, did not answer within {} s{}{}",
       name, seconds_to_answer, news.empty() ? "." : ": ", news);
}

std::shared_ptr<const Client::Compiled> Client::compile(const ProgramSetup& setup, const std::stop_token& cancelled) {
  let_go();
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(mutex_);
    request = next_request_++;
    compiling_ = request;
  }
  send(0, ControlKind::compile, {.request = request}, bytes_of(to_text(setup)));
  const ReceivedMessage reply = answer_to_compile(setup.program.name(), request, cancelled);
  if (static_cast<ControlKind>(reply.head.kind) == ControlKind::refused) {
    throw Error(static_cast<ErrorCode>(reply.head.part), text_of(reply));
  }
  auto result = std::make_shared<Compiled>();
  result->setup = setup_from_text(text_of(reply));
  result->plan = plan_program(result->setup.program, result->setup.groups, executors_, nodes_);
  result->number = reply.head.table;
  result->client = weak_from_this();  // from here on, an error drops it
  refuse_idle_groups(*result);
  for (int executor = 0; executor < executors_; ++executor) {
    const Program& program = result->setup.program;
    // An executor that does nothing sends nothing: of what it has, the client has outputs that are inputs.
    if (result->plan.lists[static_cast<std::size_t>(executor)].empty()) continue;
    if (!packed_parts(program, result->plan.groups, program.outputs(), executor, true).parts.empty()) {
      result->senders.push_back(executor);
    }
  }
  return result;
}

void Client::check_inputs(const Compiled& compiled, const std::vector<Tensor>& inputs,
                          const std::vector<KeptValue>& kept) const {
  const Program& program = compiled.setup.program;
  require(inputs.size() == program.inputs().size() && kept.size() == program.kept_inputs().size(),
          "Program '{}' has {} inputs and {} kept ones, and run() got {} and {}.", program.name(), program.inputs().size(),
          program.kept_inputs().size(), inputs.size(), kept.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueType& type = program.values()[static_cast<std::size_t>(program.inputs()[i])].type;
    require(
        inputs[i] && inputs[i].dtype() == type.dtype && inputs[i].size() == element_count(type.shape) &&
            inputs[i].device() == Device::cpu,
        "Input {} of program '{}' has {} elements of {}, and run() got {} of {}; give host memory of that size and type.", i,
        program.name(), element_count(type.shape), name(type.dtype), inputs[i] ? inputs[i].size() : 0,
        inputs[i] ? name(inputs[i].dtype()) : "no type");
  }
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Program::TypedValue& value = program.values()[static_cast<std::size_t>(program.kept_inputs()[i])];
    const std::vector<int>& executors = compiled.plan.groups[static_cast<std::size_t>(value.group)];
    require(kept[i] && kept[i].state()->client.lock().get() == this, "Kept input {} of program '{}' is not of this client.",
            i, program.name());
    const KeptValue::State& given = *kept[i].state();
    require(
        given.type == value.type && given.executors == executors,
        "Kept input {} of program '{}' is {} of shape [{}] on executors {}, and run() got {} of shape [{}] on executors {}; "
        "it must be divided alike, too.",
        i, program.name(), name(value.type.dtype), fmt::join(value.type.shape, ", "), fmt::join(executors, ", "),
        name(given.type.dtype), fmt::join(given.type.shape, ", "), fmt::join(given.executors, ", "));
  }
}

// A message to each executor that has a part of an input, or keeps one.
void Client::send_inputs(const Compiled& compiled, std::uint64_t request, const std::vector<Tensor>& inputs,
                         const std::vector<KeptValue>& kept) {
  const Program& program = compiled.setup.program;
  const std::vector<int> given = program.given();
  for (int executor = 0; executor < executors_; ++executor) {
    const bool has_any = std::ranges::any_of(given, [&](int input) {
      const int group = program.values()[static_cast<std::size_t>(input)].group;
      return device_of(compiled.plan.groups[static_cast<std::size_t>(group)], executor) >= 0;
    });
    if (!has_any || compiled.plan.lists[static_cast<std::size_t>(executor)].empty()) continue;
    const PackedParts parts = packed_parts(program, compiled.plan.groups, program.inputs(), executor, false);
    const Tensor bytes({static_cast<std::int64_t>(parts.bytes + kept.size() * sizeof(KeptName))}, DType::u8, Device::cpu);
    for (const PackedPart& part : parts.parts) {
      const auto place = std::ranges::find(program.inputs(), part.value) - program.inputs().begin();
      const Program::TypedValue& value = program.values()[static_cast<std::size_t>(part.value)];
      const auto* const from = static_cast<const std::byte*>(inputs[static_cast<std::size_t>(place)].raw());
      auto* const to = static_cast<std::byte*>(bytes.raw()) + part.offset;
      for_each_run(value, program.groups()[static_cast<std::size_t>(value.group)], part.device,
                   [&](std::size_t in_whole, std::size_t in_part, std::size_t count) {
                     std::memcpy(to + in_part, from + in_whole, count);
                   });
    }
    for (std::size_t k = 0; k < kept.size(); ++k) {
      std::memcpy(static_cast<std::byte*>(bytes.raw()) + parts.bytes + k * sizeof(KeptName), kept[k].state()->name.data(),
                  sizeof(KeptName));
    }
    send(executor, ControlKind::inputs, {.table = compiled.number, .request = request}, bytes);
  }
}

std::shared_ptr<ProgramRun::State> Client::run(const std::shared_ptr<const Compiled>& compiled, int times,
                                               const std::vector<Tensor>& inputs, const std::vector<KeptValue>& kept) {
  const Program& program = compiled->setup.program;
  require(times > 0, "Program '{}' is to run {} times; give 1 or more.", program.name(), times);
  check_inputs(*compiled, inputs, kept);
  let_go();
  auto state = std::make_shared<ProgramRun::State>();
  state->missing = {compiled->senders.begin(), compiled->senders.end()};
  state->client = weak_from_this();
  for (const int output : program.outputs()) {
    const ValueType& type = program.values()[static_cast<std::size_t>(output)].type;
    Tensor& tensor = state->outputs.emplace_back(type.shape, type.dtype, Device::cpu);
    const auto place = std::ranges::find(program.inputs(), output) - program.inputs().begin();
    if (place == std::ssize(program.inputs()) || tensor.size() == 0) continue;
    std::memcpy(tensor.raw(), inputs[static_cast<std::size_t>(place)].raw(), tensor.bytes());
  }
  std::uint64_t request = 0;
  {
    std::unique_lock lock(mutex_);
    const auto in_flight = [&] {
      return std::ranges::count_if(runs_, [&](const auto& each) { return each.second.program == compiled; });
    };
    changed_.wait(lock, [&] { return loss_ || in_flight() < compiled->setup.most_in_flight; });
    if (loss_) std::rethrow_exception(loss_);
    require(!has_left_, "Program '{}' cannot run: its client has left.", program.name());
    request = next_request_++;
    for (std::size_t k = 0; k < program.kept().size(); ++k) {
      const Program::TypedValue& value = program.values()[static_cast<std::size_t>(program.kept()[k])];
      auto its = std::make_shared<KeptValue::State>();
      its->client = weak_from_this();
      its->name = {compiled->number, request, k};
      its->type = value.type;
      its->executors = compiled->plan.groups[static_cast<std::size_t>(value.group)];
      state->kept.emplace_back(std::move(its));
    }
    runs_[request] = {compiled, state, kept};
  }
  try {
    send_inputs(*compiled, request, inputs, kept);
    send(0, ControlKind::submit, {.table = compiled->number, .part = times, .request = request});
  } catch (...) {  // leaving would wait for this run for ever
    const std::lock_guard lock(mutex_);
    end(request);
    throw;
  }
  return state;
}

void Client::drop(const Compiled& program) {
  if (has_left_) return;
  try {
    send(0, ControlKind::drop, {.table = program.number});
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the job is lost, and its programs with it
  }
}

void Client::free(const KeptValue::State& value) {
  if (has_left_) return;
  try {
    for (const int executor : value.executors) {
      send(executor, ControlKind::free,
           {.table = static_cast<std::uint32_t>(value.name[0]),
            .part = static_cast<std::int64_t>(value.name[2]),
            .request = value.name[1]});
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the job is lost, and its memory with it
  }
}

void Client::leave(bool gives_up) {
  if (gives_up) send(0, ControlKind::abandon, {});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return loss_ || runs_.empty(); });
  if (loss_) std::rethrow_exception(loss_);
  lock.unlock();
  let_go();
  send(0, ControlKind::abandon, {});  // now none of its programs has runs
  has_left_ = true;
  // The scheduler is the last to hear it: until then it tells executors if this client is lost.
  for (int executor = executors_; executor-- > 0;) send(executor, ControlKind::goodbye, {});
}

}  // namespace stretto
