// From a call to a task in a stream: the checks that need no other rank, the ledger, the order of operations, and groups of
// operations that progress together.
#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "collectives/group.hpp"
#include "collectives/host_executor.hpp"
#include "core/fail.hpp"
#include "stretto/communicator.hpp"

namespace stretto {

struct Operation::State {
  std::shared_ptr<Communicator::Group> group;
  Call call;
  OperationOptions options;
  PlannedCall planned;
};

namespace {

using Group = Communicator::Group;
using Prepared = std::shared_ptr<const Operation::State>;

bool is_message(Collective collective) { return collective == Collective::send || collective == Collective::recv; }

struct Range {
  std::uintptr_t begin, end;
  Range(const void* data, std::int64_t count, DType dtype)
      : begin(reinterpret_cast<std::uintptr_t>(data)), end(begin + static_cast<std::uintptr_t>(count) * size_of(dtype)) {}
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

// Where the one buffer has to begin for the other, in elements of the output's share, when an operation is in place.
bool is_in_place(const Call& call, const PlanRequest& request) {
  if (!can_be_in_place(call.collective)) return false;
  const auto* const input = static_cast<const std::byte*>(call.input);
  const auto* const output = static_cast<const std::byte*>(call.output);
  std::int64_t share = 0;
  if (counts_shares(call.collective)) {
    share = call.counts.empty() ? call.count * request.rank : 0;
    for (int r = 0; r < request.rank && !call.counts.empty(); ++r) share += call.counts[r];
  }
  const auto offset = static_cast<std::ptrdiff_t>(share * static_cast<std::int64_t>(size_of(call.dtype)));
  const bool gathers = call.collective == Collective::all_gather || call.collective == Collective::gather;
  return gathers ? input == output + offset : output == input + offset;
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

void check_types(const Call& call) {
  require(std::string_view(name(call.dtype)) != "unknown", "{} got the element type number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.dtype));
  require(std::string_view(name(call.op)) != "unknown", "{} got the reduction number {}, which does not exist.",
          name(call.collective), static_cast<int>(call.op));
  require(call.count <= std::int64_t{1} << 56, "{} of {} elements is more than any memory.", name(call.collective),
          call.count);
}

bool is_to_self(const Operation::State& operation) {
  return is_message(operation.call.collective) && operation.call.root == operation.group->rank();
}

// ---- what one task of a stream does

struct Started {
  Prepared operation;
  Stream stream;
};

Execution execution_of(const Operation::State& operation) {
  const Call& call = operation.call;
  return {operation.planned.plan,
          static_cast<const std::byte*>(call.input),
          static_cast<std::byte*>(call.output),
          call.dtype,
          operation.planned.wire,
          reduces(call.collective) ? call.op : ReduceOp::sum,
          operation.options.factor,
          &operation.group->links(),
          is_message(call.collective) ? Links::message_lane : 0};
}

// A message from a rank to itself: the k-th send and the k-th receive of a group belong together.
Execution copy_to_self(const Operation::State& send, const Operation::State& receive) {
  require(send.call.count == receive.call.count && send.call.dtype == receive.call.dtype,
          "Rank {} sends itself {} {} and expects {} {}.", send.group->rank(), send.call.count, name(send.call.dtype),
          receive.call.count, name(receive.call.dtype));
  auto plan = std::make_shared<Plan>(make_plan({Collective::broadcast, Algorithm::binomial, 0, 1, send.call.count}));
  Execution execution = execution_of(send);
  execution.plan = std::move(plan);
  execution.output = static_cast<std::byte*>(receive.call.output);
  return execution;
}

// Collectives of a communicator follow each other; so do messages to one peer, and messages from it.
std::vector<Sequence> sequences_of(const std::vector<Started>& started) {
  if (started.size() == 1 && !is_to_self(*started[0].operation)) return {{execution_of(*started[0].operation)}};
  std::map<std::tuple<Group*, Collective, int>, std::size_t> places;
  std::map<Group*, std::pair<std::vector<Prepared>, std::vector<Prepared>>> to_self;  // sends, receives
  std::vector<Sequence> sequences;
  for (const Started& one : started) {
    const Operation::State& operation = *one.operation;
    Group* const group = operation.group.get();
    const bool message = is_message(operation.call.collective);
    if (is_to_self(operation)) {
      auto& [sends, receives] = to_self[group];
      (operation.call.collective == Collective::send ? sends : receives).push_back(one.operation);
      continue;
    }
    const auto key = message ? std::make_tuple(group, operation.call.collective, operation.call.root)
                             : std::make_tuple(group, Collective::barrier, -1);
    const auto [place, is_new] = places.emplace(key, sequences.size());
    if (is_new) sequences.emplace_back();
    sequences[place->second].push_back(execution_of(operation));
  }
  for (const auto& [group, messages] : to_self) {
    const auto& [sends, receives] = messages;
    require(sends.size() == receives.size(),
            "Rank {} sends itself {} messages and receives {} in one group of operations; the others would never come.",
            group->rank(), sends.size(), receives.size());
    for (std::size_t i = 0; i < sends.size(); ++i) sequences.push_back({copy_to_self(*sends[i], *receives[i])});
  }
  return sequences;
}

// The communicators that take part, each with its turn and its calls.
struct Part {
  std::unique_ptr<Group::Turn> turn;
  std::vector<CallCheck::Subject> subjects;
};

// It holds no stream: the last handle of a stream waits for the stream's tasks.
struct Bundle {
  std::vector<Prepared> operations;
  std::vector<Sequence> sequences;
  std::vector<Part> parts;
  std::uint64_t first_sequence = 0;

  void run(bool in_background) {
    for (Part& part : parts) part.turn->wait();
    RankContext& context = operations.front()->group->context();
    if (context.checks_calls()) {
      for (Part& part : parts) part.turn->group()->call_check().announce(part.subjects);
      for (Part& part : parts) part.turn->group()->call_check().compare(part.subjects, part.turn->group()->name());
    }
    execute(sequences, context.network(), in_background, [&] {
      return fmt::format("operation #{}; its last operations:{}", first_sequence, context.ledger().last_operations(8));
    });
    for (Part& part : parts) part.turn->done();
  }
};

// As the caller gave them; of uneven shares, all that this rank puts in or gets out.
std::int64_t elements_of(const Operation::State& operation) {
  const PlanRequest& request = operation.planned.plan->request;
  return request.counts.empty() ? request.count : std::max(input_count(request), output_count(request));
}

std::uint64_t enter_into_ledger(const Started& one) {
  const Operation::State& operation = *one.operation;
  const Plan& plan = *operation.planned.plan;
  const std::int64_t elements = is_to_self(operation) ? 0 : plan.elements_sent();
  return operation.group->context().ledger().enter(
      {.collective = operation.call.collective,
       .algorithm = plan.request.method.algorithm,
       .group = operation.group->name(),
       .group_size = operation.group->size(),
       .dtype = operation.planned.wire,
       .count = elements_of(operation),
       .bytes_sent = static_cast<std::uint64_t>(elements) * size_of(operation.planned.wire),
       .stream = one.stream.name(),
       .tag = operation.options.tag});
}

// One task for all of them, in the first one's stream, and in its place in each of the others.
void launch(const std::vector<Started>& started, const Work& work) {
  auto bundle = std::make_shared<Bundle>();
  bundle->sequences = sequences_of(started);
  std::vector<std::uint64_t> records;
  std::vector<Stream> streams;
  for (const Started& one : started) {
    bundle->operations.push_back(one.operation);
    records.push_back(enter_into_ledger(one));
    const auto& group = one.operation->group;
    auto part = std::find_if(bundle->parts.begin(), bundle->parts.end(),
                             [&](const Part& known) { return known.turn->group() == group; });
    if (part == bundle->parts.end()) {
      part = bundle->parts.insert(part, {std::make_unique<Group::Turn>(group), {}});
    }
    part->subjects.push_back({&one.operation->call, &one.operation->options});
    if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) streams.push_back(one.stream);
  }
  bundle->first_sequence = records.front();
  Ledger& ledger = started.front().operation->group->context().ledger();
  for (const std::uint64_t record : records) ledger.attach(record, work);

  const Stream home = streams.front();
  for (std::size_t i = 1; i < streams.size(); ++i) {
    Event before;
    streams[i].record(before);
    home.wait(before);
  }
  home.enqueue([bundle, in_background = !home.is_inline()] { bundle->run(in_background); }, work);
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

// ---- groups of operations

struct Collected {
  int depth = 0;
  Work work;
  std::vector<Started> started;
};
thread_local Collected collected;

// The other ranks may have been called rightly: they learn that this one will not come.
void announce_refusal(const std::shared_ptr<Group>& group, const Call& call, const OperationOptions& options,
                      const Stream& stream) {
  auto turn = std::make_shared<Group::Turn>(group);
  stream.enqueue([turn, call, options] {
    turn->wait();
    CallCheck& check = turn->group()->call_check();
    const std::vector<CallCheck::Subject> subjects{{&call, &options, true}};
    check.announce(subjects);
    check.compare(subjects, turn->group()->name());
    turn->done();
  });
}

Operation prepared(const std::shared_ptr<Group>& group, const Call& call, const OperationOptions& options) {
  check_types(call);
  auto state = std::make_shared<Operation::State>();
  state->group = group;
  state->call = call;
  state->options = options;
  state->planned = group->plan_for(call, options.method);
  check_call(call, state->planned.plan->request);
  return Operation(state);
}

}  // namespace

Operation Communicator::prepare(const Call& call, const OperationOptions& options) const {
  group();
  return prepared(group_, call, options);
}

Work Communicator::start(const Call& call, const Stream& stream, const OperationOptions& options) const {
  group();
  Operation operation;
  try {
    operation = prepared(group_, call, options);
  } catch (const Error&) {
    if (group_->context().checks_calls()) announce_refusal(group_, call, options, stream);
    throw;
  }
  return operation.start(stream);
}

Work Operation::start(const Stream& stream) const {
  require(state_ != nullptr, "This operation was never prepared.");
  if (collected.depth > 0) {
    collected.started.push_back({state_, stream});
    return collected.work;
  }
  const Call& call = state_->call;
  require(!is_to_self(*state_), "Rank {} cannot {} a message to or from itself outside a group of operations.",
          state_->group->rank(), name(call.collective));
  const Work work = Work::reserve();
  launch({{state_, stream}}, work);
  return work;
}

const Method& Operation::method() const { return plan().request.method; }
const Plan& Operation::plan() const {
  require(state_ != nullptr, "This operation was never prepared.");
  return *state_->planned.plan;
}

OperationGroup::OperationGroup() {
  if (collected.depth++ == 0) collected.work = Work::reserve();
}

OperationGroup::~OperationGroup() {
  if (open_ && --collected.depth == 0) collected = {};
}

Work OperationGroup::end() {
  require(open_, "This group of operations has already ended.");
  open_ = false;
  if (--collected.depth > 0) return collected.work;
  const Collected all = std::exchange(collected, {});
  if (all.started.empty()) return {};
  launch(all.started, all.work);
  return all.work;
}

}  // namespace stretto
