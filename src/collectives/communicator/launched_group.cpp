#include "collectives/communicator/launched_group.hpp"

#include <algorithm>

#include "collectives/execution/host_executor.hpp"
#include "collectives/execution/sequences.hpp"
#include "collectives/execution/stream_executor.hpp"
#include "core/fail.hpp"
#include "device/memory/range.hpp"
#include "device/stream/graph_recording.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;
using Prepared = std::shared_ptr<const Operation::State>;

// What the one task does, with the turns of the communicators that take part. It holds no stream: the last handle of a
// stream waits for the stream's tasks.
struct LaunchedGroup {
  std::vector<Prepared> operations;
  std::vector<Sequence> sequences;
  std::vector<std::unique_ptr<Group::Turn>> turns;
  std::vector<std::uint64_t> records;  // of the operations in the ledger
  std::vector<Tensor> memory;          // that a GPU still uses

  void settle(std::size_t i, const PlanVariant& way) const {
    operations[i]->group->context().ledger().settle(records[i], *way.label);
  }
  void wait_for_turns() const {
    for (const auto& turn : turns) turn->wait();
  }
  // In its turn. What a GPU's stream gets is a plan of what will be done; calls are compared here and now, before.
  void put_into(const Stream& stream) {
    const ProfilerRange range([&] { return text(); });
    put_into_stream(sequences, gpu(), handle_of(stream));
    for (const auto& turn : turns) turn->done();
    keep_memory_only();
  }
  void run(bool in_background, Priority priority) {
    const ProfilerRange range([&] { return text(); });
    wait_for_turns();
    RankContext& context = operations.front()->group->context();
    execute(sequences, context.network(), in_background, priority, [&] {
      return fmt::format("operation #{}; its last operations:{}", records.front(), context.ledger().last_operations(8));
    });
    for (const auto& turn : turns) turn->done();
  }

  void compare_calls() const {
    std::vector<Sequence> checks;
    for (const Sequence& sequence : sequences) {
      for (const Execution& execution : sequence) {
        if (!execution.checking) continue;
        Execution check;
        check.own_plan = std::make_shared<Plan>();
        check.plan = check.own_plan.get();
        check.links = execution.links;
        check.checking = execution.checking;
        checks.push_back({check});
      }
    }
    if (checks.empty()) return;
    execute(checks, operations.front()->group->context().network(), false, Priority::urgent,
            [&] { return fmt::format("the comparison of operation #{} with other ranks'", records.front()); });
  }

 private:
  // Until the GPU has come past it. Not the communicators: whoever notices the end first, be it the thread that watches over
  // one of them, would have to end that.
  void keep_memory_only() {
    for (const Prepared& operation : operations) memory.push_back(operation->call.keep_alive);
    for (const Sequence& sequence : sequences) {
      for (const Execution& execution : sequence) {
        if (execution.quantizing)
          memory.insert(memory.end(), execution.quantizing->residuals.begin(), execution.quantizing->residuals.end());
      }
    }
    operations.clear();
    sequences.clear();
    turns.clear();
  }
  // For a profiler: the first operation, as the ledger has it.
  std::string text() const {
    const Operation::State& first = *operations.front();
    const Record& label = *first.way().label;
    std::string said =
        fmt::format("{} of {} B by {} in '{}'", name(label.collective),
                    static_cast<std::uint64_t>(label.count) * size_of(label.dtype), name(label.algorithm), label.group);
    if (!first.options.tag.empty()) said += fmt::format(", {}", first.options.tag);
    if (operations.size() > 1) said += fmt::format(", and {} more", operations.size() - 1);
    return said;
  }
};

std::uint64_t enter_into_ledger(const PendingCall& one, bool is_first) {
  const Operation::State& operation = *one.operation;
  Record record = *operation.way().label;
  if (is_to_self(operation)) record.bytes_sent = record.bytes_between_nodes = 0;
  record.stream = one.stream.name();
  record.tag = operation.options.tag;
  record.shares_times = !is_first;
  return operation.group->context().ledger().enter(std::move(record));
}

using Groups = std::vector<std::shared_ptr<Group>>;

// Before the work is put into its stream, which may have to wait for peers. What becomes part of a graph is done at each
// launch of that, which then is watched; and the graph keeps the communicators.
void watch(const Groups& groups, const std::string& what, const Work& work) {
  for (const auto& group : groups) {
    if (recording == nullptr) {
      group->gpu_watch().add(work, fmt::format("{} of '{}'", what, group->name()));
    } else {
      recording->before_launch.emplace(group.get(), [group](const Work& launch) {
        group->gpu_watch().add(launch, fmt::format("a launch of a graph with operations of '{}'", group->name()));
      });
    }
  }
}

// Several threads of a rank may start operations: each gets its turns in all communicators at once, in one order for all.
// Under this mutex nobody waits: whoever is waited for may have to start an operation first.
std::unique_lock<std::mutex> take_turns(LaunchedGroup& bundle, const std::vector<PendingCall>& started, const Groups& groups,
                                        const Work& work) {
  RankContext& context = groups.front()->context();
  std::unique_lock issuing(context.issue_mutex);
  for (const PendingCall& one : started) {
    const std::uint64_t record = enter_into_ledger(one, &one == &started.front());
    bundle.records.push_back(record);
    context.ledger().attach(record, work);
  }
  for (const auto& group : groups) bundle.turns.push_back(std::make_unique<Group::Turn>(group));
  return issuing;
}

// Into a GPU's stream things are put here and now, in the order of the turns, for which the calling thread waits before it
// has anything that another thread might need. Where the buffers lie on the host (a barrier has none) it waits until the
// stream has come here, and communicates by itself.
void launch_in_gpu_stream(const std::shared_ptr<LaunchedGroup>& bundle, const std::vector<PendingCall>& started,
                          const Groups& groups, const std::vector<Stream>& streams, const Work& work) {
  const Stream home = streams.front();
  const char* const what = name(started.front().operation->call.collective);
  const bool on_host = started.front().operation->device == Device::cpu;
  require(!on_host || recording == nullptr,
          "{} of buffers in host memory cannot become part of a graph of stream '{}'; call it before or behind.", what,
          home.name());
  for (std::size_t i = 1; i < streams.size(); ++i) home.wait(streams[i]);
  if (computation().device() == Device::cuda) home.wait(computation());
  take_turns(*bundle, started, groups, work).unlock();
  std::exception_ptr failure;  // is the work's
  try {
    if (on_host) home.synchronize();
    bundle->wait_for_turns();
    if (!on_host) bundle->compare_calls();
  } catch (...) {
    failure = std::current_exception();
  }
  if (!on_host && !failure) watch(groups, fmt::format("operation #{}, {},", bundle->records.front(), what), work);
  home.enqueue(
      [bundle, failure, on_host, priority = home.priority()] {
        if (failure) std::rethrow_exception(failure);
        on_host ? bundle->run(false, priority) : bundle->put_into(computation());
      },
      work);
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

}  // namespace

const PlanVariant& Operation::State::way() const {
  if (!planned->depends_on_memory()) return planned->ordinary;
  const PlanRequest& request = planned->ordinary.plan->request;
  const auto elsewhere = [](const void* buffer, std::int64_t count) {
    return count > 0 && !Heap::mine().offset_of(buffer).has_value();
  };
  const bool ordinary = elsewhere(call.input, input_count(request)) || elsewhere(call.output, output_count(request));
  return ordinary ? planned->ordinary : planned->symmetric;
}

std::shared_ptr<const Quantizing> quantizing_of(const Operation::State& operation) {
  const Quantization& how = operation.options.quantization;
  auto quantizing = std::make_shared<Quantizing>();
  quantizing->rounding = how.rounding;
  quantizing->seed = how.seed;
  if (how.errors == nullptr) return quantizing;
  const PlannedCall& planned = *operation.planned;
  for (int i = 0; i < hops; ++i) {
    const std::int64_t count =
        std::max(planned.ordinary.plan->residual_counts[i], planned.symmetric.plan->residual_counts[i]);
    if (count > 0) quantizing->residuals[i] = how.errors->state(how.tensor, static_cast<Hop>(i), count);
  }
  return quantizing;
}

// One task, in the first one's stream, and in its place in each of the others.
void launch(const std::vector<PendingCall>& started, const Work& work) {
  auto bundle = std::make_shared<LaunchedGroup>();
  bundle->sequences = sequences_of(started, [owner = bundle.get()](std::size_t i) {
    return [owner, i](const PlanVariant& way) { owner->settle(i, way); };
  });
  if (started.size() > 1) check_apart(bundle->sequences);
  Groups groups;
  std::vector<Stream> streams;
  for (const PendingCall& one : started) {
    bundle->operations.push_back(one.operation);
    const auto& group = one.operation->group;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) streams.push_back(one.stream);
  }
  const Device device = started.front().operation->device;
  for (const PendingCall& one : started) {
    require(one.operation->device == device,
            "A group of operations got {} in host memory beside others in a GPU's; make a group of each.",
            name(one.operation->call.collective));
  }
  const Stream home = streams.front();
  if (home.device() == Device::cuda) return launch_in_gpu_stream(bundle, started, groups, streams, work);
  for (std::size_t i = 1; i < streams.size(); ++i) {  // a thread that puts something there may have to be waited for
    if (streams[i].device() == Device::cuda) home.wait(streams[i]);
  }
  std::unique_lock issuing = take_turns(*bundle, started, groups, work);
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
  Priority priority = home.priority();  // all of them go together, as urgently as the most urgent one
  for (const Stream& stream : streams) priority = std::max(priority, stream.priority());
  home.enqueue([bundle, priority, in_background = !home.is_inline()] { bundle->run(in_background, priority); }, work);
  if (issuing.owns_lock()) issuing.unlock();
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

}  // namespace stretto
