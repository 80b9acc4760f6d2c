#include "collectives/communicator/launched_group.hpp"

#include <algorithm>
#include <mutex>
#include <optional>

#include "collectives/communicator/call_order.hpp"
#include "collectives/communicator/group.hpp"
#include "collectives/communicator/sequences.hpp"
#include "collectives/execution/host_executor.hpp"
#include "collectives/execution/stream_executor.hpp"
#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/rehearsal_mode.hpp"
#include "device/stream/graph_recording.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;
using Groups = std::vector<std::shared_ptr<Group>>;

constexpr std::size_t operations_to_list = 8;

// The listener of executions that only compare calls.
class Comparison final : public ExecutionListener {
 public:
  // launched: the calls that are compared; null if this rank has refused its call.
  Comparison(std::string what, const Ledger& ledger, ExecutionListener* launched = nullptr)
      : what_(std::move(what)), ledger_(ledger), launched_(launched) {}
  std::string describe() const override { return what_; }
  std::string history() const override { return ledger_.last_operations(operations_to_list); }
  void still_wait(const std::function<std::vector<int>()>& ranks) override {
    if (launched_ != nullptr) launched_->still_wait(ranks);
  }

 private:
  std::string what_;
  const Ledger& ledger_;
  ExecutionListener* launched_;
};

struct LaunchedCall {
  std::shared_ptr<const Operation::State> operation;
  std::uint64_t record;  // in the ledger
};

// The one task of calls that were launched together, with the turns of the communicators that take part. It holds no stream,
// because destroying the last handle of a stream waits for the stream's tasks.
struct LaunchedGroup final : ExecutionListener {
  std::vector<LaunchedCall> calls;
  std::vector<Sequence> sequences;
  std::vector<std::unique_ptr<Turn>> turns;
  std::unique_ptr<CallOrder> order;  // with STRETTO_CHECK
  std::vector<Tensor> memory;        // memory that a GPU still uses

  RankContext& context() const { return calls.front().operation->group->context(); }
  std::uint64_t first_record() const { return calls.front().record; }

  std::string describe() const override {
    const std::vector<Record> records = context().ledger().records(first_record());
    const std::string first = records.empty() ? name(calls.front().operation->call.collective) : records.front().headline();
    return calls.size() == 1 ? first : fmt::format("{} and {} more", first, calls.size() - 1);
  }
  std::string history() const override { return context().ledger().last_operations(operations_to_list); }
  void decided(std::size_t call, const PlanVariant& variant) override {
    context().ledger().settle(calls[call].record, *variant.record);
  }

  void still_wait(const std::function<std::vector<int>()>& ranks) override {
    if (order) order->check(ranks);
  }

  void wait_for_turns() const {
    for (const auto& turn : turns) turn->wait();
    if (order) order->begin();
  }
  void run(bool in_background, Priority priority) {
    const ProfilerRange range([&] { return text(); });
    wait_for_turns();
    execute(sequences, context().network(), in_background, priority, *this);
    for (const auto& turn : turns) turn->done();
  }
  // Enqueues everything on a GPU's stream. wait_for_turns() and compare_calls() must come before.
  void put_into(const Stream& stream) {
    const ProfilerRange range([&] { return text(); });
    put_into_stream(sequences, gpu(), handle_of(stream));
    for (const auto& turn : turns) turn->done();
    keep_memory_only();
  }
  void compare_calls() {
    std::vector<Sequence> comparisons;
    for (const Sequence& sequence : sequences) {
      for (const Execution& execution : sequence) {
        if (!execution.preamble) continue;
        Execution& comparison = comparisons.emplace_back().emplace_back();
        comparison.links = execution.links;
        comparison.preamble = execution.preamble;
      }
    }
    if (comparisons.empty()) return;
    Comparison listener(fmt::format("the comparison with other ranks' calls of {}", describe()), context().ledger(), this);
    execute(comparisons, context().network(), false, Priority::urgent, listener);
  }

 private:
  // Keeps the tensors alive until the GPU has passed this point, but not the communicators: the thread that watches a
  // communicator may release this task last, and must not destroy the communicator that owns it.
  void keep_memory_only() {
    for (const LaunchedCall& call : calls) {
      for (const Tensor& tensor : call.operation->call.keep_alive) memory.push_back(tensor);
    }
    for (const Sequence& sequence : sequences) {
      for (const Execution& execution : sequence) {
        if (!execution.quantizing) continue;
        memory.insert(memory.end(), execution.quantizing->residuals.begin(), execution.quantizing->residuals.end());
      }
    }
    sequences.clear();
    turns.clear();
    order.reset();
    calls.clear();
  }
  // The text for a profiler: the first operation, as in its ledger record.
  std::string text() const {
    const Operation::State& first = *calls.front().operation;
    const Record& record = *first.variant().record;
    std::string said =
        fmt::format("{} of {} B by {} in '{}'", name(record.collective),
                    static_cast<std::uint64_t>(record.count) * size_of(record.dtype), record.method_text(), record.group);
    if (first.options.tag != nullptr) said += fmt::format(", {}", first.options.tag);
    if (calls.size() > 1) said += fmt::format(", and {} more", calls.size() - 1);
    return said;
  }
};

std::uint64_t enter_into_ledger(const PendingCall& call, bool is_first) {
  const Operation::State& operation = *call.operation;
  Record record = *operation.variant().record;
  if (operation.is_to_self()) record.bytes_sent = record.bytes_between_nodes = 0;
  record.stream = call.stream.name();
  CallLabel{operation.options.site, operation.options.tag}.enter(record);
  record.shares_times = !is_first;
  return operation.group->context().ledger().enter(std::move(record));
}

// Tells the communicators' watches about the work before it is put into its stream, which may have to wait for peers. A work
// that is captured in a graph runs at each launch of the graph, so each launch is watched instead. The graph keeps the
// communicators alive.
void watch(const Groups& groups, const std::string& what, const Work& work) {
  for (const auto& group : groups) {
    if (recording == nullptr) {
      group->gpu_watch().add(work, what);
    } else {
      recording->before_launch.emplace(group.get(), [group](const Work& launch) {
        group->gpu_watch().add(launch, fmt::format("a launch of a graph with operations of '{}'", group->name()));
      });
    }
  }
}

// Several threads of a rank may start operations. Each call gets its turns in all its communicators at once, so that all
// communicators have the same order. A thread must not wait under this mutex: the thread that it waits for may have to start
// an operation first.
std::unique_lock<std::mutex> take_turns(LaunchedGroup& launched, const std::vector<PendingCall>& calls, const Groups& groups,
                                        const Work& work) {
  RankContext& context = groups.front()->context();
  std::unique_lock issuing(context.issue_mutex);
  for (const PendingCall& call : calls) {
    const std::uint64_t record = enter_into_ledger(call, &call == &calls.front());
    launched.calls.push_back({call.operation, record});
    context.ledger().attach(record, work);
  }
  if (context.checks_calls()) launched.order = std::make_unique<CallOrder>(calls, launched.first_record(), work);
  for (const auto& group : groups) launched.turns.push_back(std::make_unique<Turn>(turns_of(group)));
  return issuing;
}

// Operations are put into a GPU's stream at once, in the order of the turns. The calling thread waits for its turns before
// it holds anything that another thread might need. If the buffers are in host memory (a barrier has none), it waits until
// the stream has reached this point, and communicates by itself.
void launch_in_gpu_stream(const std::shared_ptr<LaunchedGroup>& launched, const std::vector<PendingCall>& calls,
                          const Groups& groups, const std::vector<Stream>& streams, const Work& work) {
  const Stream& home = streams.front();
  const char* const what = name(calls.front().operation->call.collective);
  const bool on_host = calls.front().operation->device == Device::cpu;
  require(!on_host || recording == nullptr,
          "{} of buffers in host memory cannot become part of a graph of stream '{}'; call it before or behind.", what,
          home.name());
  for (std::size_t i = 1; i < streams.size(); ++i) home.wait(streams[i]);
  if (computation().device() == Device::cuda) home.wait(computation());
  take_turns(*launched, calls, groups, work).unlock();
  std::exception_ptr failure;  // passed to the work
  const AwaitsWork awaits(work.state().get());
  try {
    if (on_host) home.synchronize();
    launched->wait_for_turns();
    if (!on_host) launched->compare_calls();
  } catch (...) {
    failure = std::current_exception();
  }
  if (!on_host && !failure) watch(groups, launched->describe(), work);
  home.enqueue(
      [launched, failure, on_host, priority = home.priority()] {
        if (failure) std::rethrow_exception(failure);
        on_host ? launched->run(false, priority) : launched->put_into(computation());
      },
      work);
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

void launch_in_host_stream(const std::shared_ptr<LaunchedGroup>& launched, const std::vector<PendingCall>& calls,
                           const Groups& groups, const std::vector<Stream>& streams, const Work& work) {
  const Stream& home = streams.front();
  // Before the mutex is locked, because this may wait for a thread that puts an operation into one of these streams.
  for (std::size_t i = 1; i < streams.size(); ++i) {
    if (streams[i].device() == Device::cuda) home.wait(streams[i]);
  }
  std::unique_lock issuing = take_turns(*launched, calls, groups, work);
  for (std::size_t i = 1; i < streams.size(); ++i) {
    if (streams[i].device() == Device::cuda) continue;
    Event before;
    streams[i].record(before);
    if (home.is_inline()) {
      issuing.unlock();
      before.wait();
      issuing.lock();
    } else {
      home.wait(before);
    }
  }
  if (home.is_inline()) issuing.unlock();
  std::optional<AwaitsWork> awaits;
  if (home.is_inline()) awaits.emplace(work.state().get());
  Priority priority = home.priority();  // all operations have the priority of the most urgent one
  for (const Stream& stream : streams) priority = std::max(priority, stream.priority());
  home.enqueue([launched, priority, in_background = !home.is_inline()] { launched->run(in_background, priority); }, work);
  if (issuing.owns_lock()) issuing.unlock();
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

// One task, in the first call's stream; each of the other streams waits for it at its own place.
void launch_together(const std::vector<PendingCall>& calls, const Work& work) {
  auto launched = std::make_shared<LaunchedGroup>();
  launched->sequences = sequences_of(calls);
  if (calls.size() > 1) check_apart(launched->sequences);
  Groups groups;
  std::vector<Stream> streams;
  const Device device = calls.front().operation->device;
  for (const PendingCall& call : calls) {
    require(call.operation->device == device,
            "A group of operations got {} in host memory beside others in a GPU's; make a group of each.",
            name(call.operation->call.collective));
    const auto& group = call.operation->group;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    if (std::find(streams.begin(), streams.end(), call.stream) == streams.end()) streams.push_back(call.stream);
  }
  const bool on_gpu = streams.front().device() == Device::cuda;
  (on_gpu ? launch_in_gpu_stream : launch_in_host_stream)(launched, calls, groups, streams, work);
}

}  // namespace

void launch(const std::vector<PendingCall>& calls, const Work& work) {
  work.state()->skipped = rehearsal_mode.skip_communication;
  if (calls.empty() || work.state()->skipped) return Stream::inline_().enqueue([] {}, work);
  launch_together(calls, work);
  if (rehearsal_mode.no_overlap) work.wait();
}

void launch_refusal(const std::shared_ptr<Group>& group, const Call& call, const OperationOptions& options,
                    const std::string& why, const Stream& stream) {
  auto turn = std::make_shared<Turn>(turns_of(group));
  if (stream.device() == Device::cuda) turn->wait();  // before the thread holds anything that another thread might need
  stream.enqueue([group, turn, call, options, why] {
    turn->wait();
    CheckedCall checked = checked_call(call, options);
    checked.refusal = why;
    Execution comparison;
    comparison.links = &group->links();
    comparison.preamble = std::make_shared<CallComparison>(group->call_check(), std::move(checked));
    Comparison listener("the refusal of a call: " + why, group->context().ledger());
    execute({{comparison}}, group->context().network(), false, Priority::urgent, listener);
    turn->done();
  });
}

}  // namespace stretto
