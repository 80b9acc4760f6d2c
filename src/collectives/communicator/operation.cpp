// From a call to what can be started: the checks that need no other rank, the plan, and the calls that a group collects.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "collectives/communicator/inline_fast_path.hpp"
#include "collectives/communicator/launched_group.hpp"
#include "collectives/execution/host_executor.hpp"
#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "device/gpu.hpp"
#include "device/rehearsal_mode.hpp"
#include "stretto/communicator.hpp"
#include "stretto/device.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;
using Prepared = std::shared_ptr<const Operation::State>;

struct Range {
  std::uintptr_t begin, end;
  Range(const void* data, std::int64_t count, DType dtype)
      : begin(reinterpret_cast<std::uintptr_t>(data)), end(begin + static_cast<std::uintptr_t>(count) * size_of(dtype)) {}
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

bool is_in_place(const Call& call, const PlanRequest& request) {
  return can_be_in_place(call.collective) &&
         static_cast<const std::byte*>(call.input) ==
             static_cast<const std::byte*>(call.output) +
                 input_behind_output(request) * static_cast<std::ptrdiff_t>(size_of(call.dtype));
}

void check_call(const Call& call, const PlanRequest& request) {
  const char* const what = name(call.collective);
  const std::int64_t reads = input_count(request);
  const std::int64_t writes = output_count(request);
  require((reads == 0 || call.input != nullptr) && (writes == 0 || call.output != nullptr),
          "{} of {} {} got a null {} on rank {}, which has {} elements there.", what, call.count, name(call.dtype),
          reads > 0 && call.input == nullptr ? "input" : "output", request.rank,
          reads > 0 && call.input == nullptr ? reads : writes);
  const Range input(call.input, reads, call.dtype);
  const Range output(call.output, writes, call.dtype);
  require(call.collective == Collective::barrier || !input.meets(output) || is_in_place(call, request),
          "{} of {} {} on rank {} got an input and an output that overlap without being the same place; use separate buffers"
          "{}.",
          what, call.count, name(call.dtype), request.rank,
          can_be_in_place(call.collective) ? ", or the in-place form" : "");
}

// An operation writes its error state while it reads its input and writes its output.
void check_errors_apart(const Call& call, const PlanRequest& request, const std::string& tensor,
                        const Quantizing& quantizing) {
  for (const Tensor& state : quantizing.residuals) {
    if (!state) continue;
    const Range errors(state.raw(), state.size(), state.dtype());
    const auto shares = [&](const void* data, std::int64_t count) {
      return count > 0 && Range(data, count, call.dtype).meets(errors);
    };
    const bool input = shares(call.input, input_count(request));
    require(!input && !shares(call.output, output_count(request)),
            "{} of {} {} on rank {} got an {} that lies in its own error state, '{}'; give it a buffer of its own.",
            name(call.collective), call.count, name(call.dtype), request.rank, input ? "input" : "output", tensor);
  }
}

// Integers are multiplied by an integer that their type holds.
void check_factor(const Call& call, double factor) {
  if (!reduces(call.collective) || call.op != ReduceOp::premul_sum || is_narrow(call.dtype)) return;
  if (call.dtype == DType::f32 || call.dtype == DType::f64) return;
  const bool is_signed = call.dtype == DType::i8 || call.dtype == DType::i32 || call.dtype == DType::i64;
  const double limit = std::pow(2.0, static_cast<double>(8 * size_of(call.dtype)) - (is_signed ? 1 : 0));
  require(factor == std::floor(factor) && factor < limit && factor >= (is_signed ? -limit : 0.0),
          "{} of {} got the factor {}, which {} does not hold; integers are multiplied by an integer.",
          name(call.collective), name(call.dtype), factor, name(call.dtype));
}

// What of it any rank can tell by itself.
void check_quantization(const Call& call, const Quantization& how) {
  const char* const what = name(call.collective);
  const bool known = std::string_view(name(how.format)) != "unknown" && std::string_view(name(how.result)) != "unknown";
  require(known, "{} got the quantized formats number {} and {}; there are {}, counted from 0.", what,
          static_cast<int>(how.format), static_cast<int>(how.result), quantized_formats);
  require(how.result == QuantizedFormat::none || call.collective == Collective::all_reduce,
          "{} got {} as the format of its result; only all_reduce quantizes twice, {} takes one format.", what,
          name(how.result), what);
  require(how.result == QuantizedFormat::none || how.format != QuantizedFormat::none,
          "{} got {} as the format of its result and none for what goes there; give both, or the latter alone.", what,
          name(how.result));
  if (how.format == QuantizedFormat::none) {
    const char* const meant = how.errors != nullptr                    ? "errors"
                              : !how.tensor.empty()                    ? "tensor"
                              : how.only_if_faster                     ? "only_if_faster"
                              : how.rounding != Rounding::nearest_even ? "rounding"
                                                                       : nullptr;
    require(meant == nullptr, "{} got Quantization::{}, but no format that it would be for; give Quantization::format, too.",
            what, meant == nullptr ? "" : meant);
    return;
  }
  require(can_be_quantized(call.collective), "{} cannot be quantized to {}; all_gather, reduce_scatter and all_reduce can.",
          what, name(how.format));
  require(call.dtype == DType::f32 || call.dtype == DType::bf16 || call.dtype == DType::f16,
          "{} of {} cannot be quantized to {}; f32, bf16 and f16 can.", what, name(call.dtype), name(how.format));
  require(
      !reduces(call.collective) || call.op == ReduceOp::sum || call.op == ReduceOp::avg || call.op == ReduceOp::premul_sum,
      "{} ({}) cannot be quantized to {}; sum, avg and premul_sum can.", what, name(call.op), name(how.format));
  require(how.rounding == Rounding::nearest_even || how.rounding == Rounding::stochastic,
          "{} got the rounding number {}, which does not exist.", what, static_cast<int>(how.rounding));
  for (const QuantizedFormat format : {how.format, how.result}) {
    require(how.rounding == Rounding::nearest_even || (format != QuantizedFormat::fp8 && format != QuantizedFormat::onebit),
            "{} to {} cannot round stochastically; int8 and int4 can.", what, name(format));
  }
  require(how.errors == nullptr || !how.tensor.empty(),
          "{} to {} got error feedback, but no name of the tensor whose errors these are; give Quantization::tensor.", what,
          name(how.format));
}

void check_types(const Call& call) {
  require(std::string_view(name(call.dtype)) != "unknown", "{} got the element type number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.dtype));
  require(std::string_view(name(call.op)) != "unknown", "{} got the reduction number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.op));
}

// ---- groups of operations

struct Collected {
  Work work;
  std::vector<PendingCall> started;
};
thread_local Collected collected;
// How many groups this thread is in. Apart, since every operation asks, and this one needs neither set-up nor a call.
[[gnu::tls_model("initial-exec")]] constinit thread_local int depth = 0;

// The other ranks may have been called rightly: they learn that this one will not come. Where all were called wrongly in the
// same way, nothing happens.
void announce_refusal(const std::shared_ptr<Group>& group, const Call& call, const OperationOptions& options,
                      const std::string& why, const Stream& stream) {
  auto turn = std::make_shared<Group::Turn>(group);
  if (stream.device() == Device::cuda) turn->wait();  // while others may put something into that
  stream.enqueue([turn, call, options, why] {
    turn->wait();
    Execution nothing;
    nothing.own_plan = std::make_shared<Plan>();
    nothing.plan = nothing.own_plan.get();
    nothing.links = &turn->group()->links();
    auto checking = std::make_shared<Checking>();
    checking->check = &turn->group()->call_check();
    checking->checked.call = &call;
    checking->checked.method = options.method;
    checking->checked.quantized = text_of(options.quantization);
    checking->checked.refusal = why;
    checking->communicator = turn->group()->name();
    nothing.checking = std::move(checking);
    execute({{nothing}}, turn->group()->context().network(), false, Priority::urgent,
            [&] { return "the refusal of a call: " + why; });
    turn->done();
  });
}

// Which a rehearsal may leave out, or not let overlap.
void launch_or_leave_out(const std::vector<PendingCall>& started, const Work& work) {
  if (started.empty() || rehearsal_mode.skip_communication) {
    return Stream::inline_().enqueue([] {}, work);
  }
  launch(started, work);
  if (rehearsal_mode.no_overlap) work.wait();
}

// Where a call's buffers lie, as far as this rank has any: a pointer to no elements says nothing. Where it has none, it goes
// with the others, who give streams of the same device.
Device device_of(const Group& group, const Call& call, const OperationOptions& options, Device otherwise) {
  if (!gpu_in_use() || call.collective == Collective::barrier) [[likely]]
    return Device::cpu;
  const PlanRequest request = group.request_of(call, options);
  check_shape(request);
  const auto device = [](const void* data, std::int64_t count) -> std::optional<Device> {
    if (data == nullptr || count == 0) return std::nullopt;
    return gpu().is_device_memory(data) ? Device::cuda : Device::cpu;
  };
  const std::optional<Device> input = device(call.input, input_count(request));
  const std::optional<Device> output = device(call.output, output_count(request));
  require(!input || !output || *input == *output,
          "{} got one buffer in a GPU's memory and one in the host's; put both into one.", name(call.collective));
  return input ? *input : output.value_or(otherwise);
}

void check_stream(const Operation::State& operation, const Stream& stream) {
  require(
      operation.device == Device::cpu || stream.device() == Device::cuda,
      "{} of buffers in a GPU's memory got stream '{}', which is the host's; give one of the GPU, such as computation().",
      name(operation.call.collective), stream.name());
}

bool may_run_at_once(const InlineFastPath* fast_path, const Stream& stream) {
  return fast_path != nullptr && stream.is_inline() && !rehearsal_mode.skip_communication;
}

// Without a look at the shape, which InlineFastPath knows.
bool lies_on_host(const Call& call) {
  const auto on_gpu = [](const void* data) { return data != nullptr && gpu().is_device_memory(data); };
  return !gpu_in_use() || (!on_gpu(call.input) && !on_gpu(call.output));
}

// otherwise: the device of a call for which this rank has no buffers.
Operation prepared(const std::shared_ptr<Group>& group, const Call& call, const OperationOptions& options,
                   Device otherwise) {
  check_types(call);
  check_quantization(call, options.quantization);
  auto state = std::make_shared<Operation::State>();
  state->group = group;
  state->call = call;
  state->options = options;
  if (call.collective == Collective::barrier) {  // one element whose value nobody looks at
    state->call.keep_alive = Tensor({1}, DType::f32, Device::cpu);
    state->call.keep_alive.set(0, 0);
    state->call.input = state->call.output = state->call.keep_alive.raw();
    state->call.dtype = DType::f32;
    state->call.count = 1;
  }
  state->device = device_of(*group, state->call, options, otherwise);
  state->planned = group->plan_for(state->call, options, state->device);
  check_call(state->call, state->planned->ordinary.plan->request);
  check_factor(state->call, options.factor);
  if (options.quantization.errors != nullptr) {
    const auto quantizing = quantizing_of(*state);  // throws where they do not fit
    check_errors_apart(state->call, state->planned->ordinary.plan->request, options.quantization.tensor, *quantizing);
  }
  return Operation(state);
}

}  // namespace

Operation Communicator::prepare(const Call& call, const OperationOptions& options) const {
  group();
  return prepared(group_, call, options, current_device());
}

void Communicator::check(const Call& call, const OperationOptions& options) const {
  group();
  check_types(call);
  check_quantization(call, options.quantization);
  group_->check(call, options, device_of(*group_, call, options, current_device()));
  check_factor(call, options.factor);
}

Estimate Communicator::estimate(const Call& call, const OperationOptions& options) const {
  group();
  check_types(call);
  check_quantization(call, options.quantization);
  return group_->estimate(call, options, device_of(*group_, call, options, current_device()));
}

Work Communicator::start(const Call& call, const Stream& stream, const OperationOptions& options) const {
  Work work;  // the only one that is returned: in the caller's place from the beginning, see InlineFastPath::perform()
  if (InlineFastPath* const fast_path = group().fast_path();
      may_run_at_once(fast_path, stream) && depth == 0 && lies_on_host(call)) {
    if (fast_path->run(call, options, work)) return work;
  }
  Operation operation;
  try {
    operation = prepared(group_, call, options, stream.device());
  } catch (const Error& refused) {
    if (!group_->context().checks_calls()) throw;
    try {
      announce_refusal(group_, call, options, refused.what(), stream);
    } catch (const Error& mismatch) {  // on an inline stream
      throw Error(refused.code(), std::string(refused.what()) + " " + mismatch.what());
    }
    throw;
  }
  const bool on_host = operation.state()->device == Device::cpu;
  if (group_->fast_path() != nullptr && stream.is_inline() && on_host) group_->fast_path()->remember(*operation.state());
  work = operation.start(stream);
  return work;
}

Work Operation::start(const Stream& stream) const {
  require(state_ != nullptr, "This operation was never prepared.");
  check_stream(*state_, stream);
  Work work;  // the only one that is returned, as above
  if (depth > 0) {
    collected.started.push_back({state_, stream});
    work = collected.work;
    return work;
  }
  if (InlineFastPath* const fast_path = state_->group->fast_path(); may_run_at_once(fast_path, stream)) {
    if (fast_path->run(*state_, work)) return work;
  }
  const Call& call = state_->call;
  require(!is_to_self(*state_), "Rank {} cannot {} a message to or from itself outside a group of operations.",
          state_->group->rank(), name(call.collective));
  work = Work::reserve();
  launch_or_leave_out({{state_, stream}}, work);
  return work;
}

const Method& Operation::method() const { return plan().request.method; }
const Plan& Operation::plan() const {
  require(state_ != nullptr, "This operation was never prepared.");
  return *state_->way().plan;
}

bool in_operation_group() { return depth > 0; }
OutsideOperationGroups::OutsideOperationGroups() : depth_(std::exchange(depth, 0)) {}
OutsideOperationGroups::~OutsideOperationGroups() { depth = depth_; }

OperationGroup::OperationGroup() : thread_(std::this_thread::get_id()), first_(collected.started.size()) {
  if (depth++ == 0) collected.work = Work::reserve();
}

OperationGroup::~OperationGroup() {
  if (!open_) return;
  collected.started.erase(collected.started.begin() + static_cast<std::ptrdiff_t>(first_), collected.started.end());
  if (--depth == 0) collected = {};
}

Work OperationGroup::end() {
  require(open_, "This group of operations has already ended.");
  require(thread_ == std::this_thread::get_id(), "A group of operations ends in the thread that began it.");
  open_ = false;
  if (--depth > 0) return collected.work;
  const Collected all = std::exchange(collected, {});
  launch_or_leave_out(all.started, all.work);
  return all.work;
}

}  // namespace stretto
