#include "collectives/bundle.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/host_executor.hpp"
#include "collectives/stream_executor.hpp"
#include "core/fail.hpp"
#include "device/graph_recording.hpp"
#include "device/range.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;
using Prepared = std::shared_ptr<const Operation::State>;

Execution execution_of(const Operation::State& operation, bool alone, std::function<void(const Way&)> settled) {
  const Call& call = operation.call;
  Execution execution;
  execution.caller = caller_of(call, operation.options.factor);
  execution.take(operation.planned->ordinary);
  execution.links = &operation.group->links();
  execution.first_lane = is_message(call.collective) ? Links::message_lane : 0;
  execution.shared = operation.group->shared_memory();
  execution.gpu_links = operation.group->gpu_links();
  if (operation.planned->depends_on_memory()) {
    execution.choices = operation.planned;
    execution.settled = std::move(settled);
  }
  if (operation.options.quantization.format != QuantizedFormat::none) execution.quantizing = quantizing_of(operation);
  if (!operation.group->context().checks_calls()) return execution;
  auto checking = std::make_shared<Checking>();
  checking->check = &operation.group->call_check();
  checking->checked.call = &call;
  checking->checked.method = operation.options.method;
  checking->checked.quantized = text_of(operation.options.quantization);
  checking->checked.alone = alone;
  checking->communicator = operation.group->name();
  execution.checking = std::move(checking);
  return execution;
}

// A message from a rank to itself: the k-th send and the k-th receive of a group belong together.
Execution copy_to_self(const Operation::State& send, const Operation::State& receive) {
  require(send.call.count == receive.call.count && send.call.dtype == receive.call.dtype,
          "Rank {} sends itself {} {} and expects {} {}.", send.group->rank(), send.call.count, name(send.call.dtype),
          receive.call.count, name(receive.call.dtype));
  auto plan = std::make_shared<Plan>(make_plan({Collective::broadcast, Algorithm::binomial, 0, 1, send.call.count}));
  Execution execution = execution_of(send, false, {});
  execution.checking = nullptr;
  execution.plan = plan.get();
  execution.own_plan = std::move(plan);
  execution.choices = nullptr;
  execution.caller.output = static_cast<std::byte*>(receive.call.output);
  return execution;
}

// Collectives of a communicator follow each other; so do messages to one peer, and messages from it.
// settled(i): to be told how the i-th one is done, once that is known.
std::vector<Sequence> sequences_of(const std::vector<Started>& started,
                                   const std::function<std::function<void(const Way&)>(std::size_t)>& settled) {
  if (started.size() == 1 && !is_to_self(*started[0].operation)) {
    return {{execution_of(*started[0].operation, true, settled(0))}};
  }
  std::map<std::tuple<Group*, Collective, int>, std::size_t> places;
  std::map<Group*, std::pair<std::vector<Prepared>, std::vector<Prepared>>> to_self;  // sends, receives
  std::vector<Sequence> sequences;
  std::map<const Group*, int> operations;
  for (const Started& one : started) ++operations[one.operation->group.get()];
  for (std::size_t i = 0; i < started.size(); ++i) {
    const Started& one = started[i];
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
    sequences[place->second].push_back(execution_of(operation, operations[group] == 1, settled(i)));
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

// What a sequence reads or writes.
struct Access {
  std::uintptr_t begin, end;
  bool writes;
  std::size_t sequence;
};

// Sequences run at the same time; only those that follow each other may share memory that is written.
void check_apart(const std::vector<Sequence>& sequences) {
  std::vector<Access> all;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (const Execution& execution : sequences[i]) {
      const PlanRequest& request = execution.plan->request;
      if (request.collective == Collective::barrier) continue;
      const auto add = [&](const std::byte* data, std::int64_t count, DType dtype, bool writes) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (count > 0) all.push_back({begin, begin + static_cast<std::uintptr_t>(count) * size_of(dtype), writes, i});
      };
      add(execution.caller.input, input_count(request), execution.caller.dtype, false);
      add(execution.caller.output, output_count(request), execution.caller.dtype, true);
      if (!execution.quantizing) continue;
      for (const Tensor& state : execution.quantizing->residuals) {
        add(static_cast<const std::byte*>(state.raw()), state.size(), state.dtype(), true);
      }
    }
  }
  std::sort(all.begin(), all.end(), [](const Access& a, const Access& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && all[j].begin < all[i].end; ++j) {
      require(all[i].sequence == all[j].sequence || (!all[i].writes && !all[j].writes),
              "Two operations of one group of operations use {} bytes of the same memory at the same time, and one of them "
              "writes "
              "there; give them buffers of their own.",
              std::min(all[i].end, all[j].end) - all[j].begin);
    }
  }
}

// What the one task does, with the turns of the communicators that take part. It holds no stream: the last handle of a
// stream waits for the stream's tasks.
struct Bundle {
  std::vector<Prepared> operations;
  std::vector<Sequence> sequences;
  std::vector<std::unique_ptr<Group::Turn>> turns;
  std::vector<std::uint64_t> records;  // of the operations in the ledger
  std::vector<Tensor> memory;          // that a GPU still uses

  void settle(std::size_t i, const Way& way) const {
    operations[i]->group->context().ledger().settle(records[i], *way.label);
  }
  // What a GPU's stream gets is a plan of what will be done; only the comparison of calls is done here and now.
  void put_into(const Stream& stream) {
    const ProfilerRange range([&] { return text(); });
    for (const auto& turn : turns) turn->wait();
    compare_calls();
    put_into_stream(sequences, gpu(), handle_of(stream));
    for (const auto& turn : turns) turn->done();
    keep_memory_only();
  }
  void run(bool in_background, Priority priority) {
    const ProfilerRange range([&] { return text(); });
    for (const auto& turn : turns) turn->wait();
    RankContext& context = operations.front()->group->context();
    execute(sequences, context.network(), in_background, priority, [&] {
      return fmt::format("operation #{}; its last operations:{}", records.front(), context.ledger().last_operations(8));
    });
    for (const auto& turn : turns) turn->done();
  }

 private:
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
};

std::uint64_t enter_into_ledger(const Started& one, bool is_first) {
  const Operation::State& operation = *one.operation;
  Record record = *operation.way().label;
  if (is_to_self(operation)) record.bytes_sent = record.bytes_between_nodes = 0;
  record.stream = one.stream.name();
  record.tag = operation.options.tag;
  record.shares_times = !is_first;
  return operation.group->context().ledger().enter(std::move(record));
}

void watch(const std::vector<std::shared_ptr<Group>>& groups, const std::string& what, const Work& work) {
  if (recording != nullptr) return;  // it becomes part of a graph, and is done at each launch
  for (const auto& group : groups) group->gpu_watch().add(work, fmt::format("{} of '{}'", what, group->name()));
}

}  // namespace

const Way& Operation::State::way() const {
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
void launch(const std::vector<Started>& started, const Work& work) {
  auto bundle = std::make_shared<Bundle>();
  bundle->sequences = sequences_of(
      started, [owner = bundle.get()](std::size_t i) { return [owner, i](const Way& way) { owner->settle(i, way); }; });
  if (started.size() > 1) check_apart(bundle->sequences);
  RankContext& context = started.front().operation->group->context();
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<Stream> streams;
  for (const Started& one : started) {
    bundle->operations.push_back(one.operation);
    const auto& group = one.operation->group;
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
    if (std::find(streams.begin(), streams.end(), one.stream) == streams.end()) streams.push_back(one.stream);
  }
  const Stream home = streams.front();
  const Device device = started.front().operation->device;
  for (const Started& one : started) {
    require(one.operation->device == device,
            "A group of operations got {} in host memory beside others in a GPU's; make a group of each.",
            name(one.operation->call.collective));
  }
  // Several threads of a rank may start operations: the turns that these get must be in the order of their streams.
  std::unique_lock issuing(context.issue_mutex);
  for (const Started& one : started) {
    const std::uint64_t record = enter_into_ledger(one, &one == &started.front());
    bundle->records.push_back(record);
    context.ledger().attach(record, work);
  }
  for (const auto& group : groups) bundle->turns.push_back(std::make_unique<Group::Turn>(group));
  for (std::size_t i = 1; i < streams.size(); ++i) {
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
  if (device == Device::cuda) {
    if (computation().device() == Device::cuda) home.wait(computation());
    // Here and now: two threads that put operations into one stream do so in the order of their turns.
    home.enqueue([bundle] { bundle->put_into(computation()); }, work);
    issuing.unlock();
    watch(groups,
          fmt::format("operation #{}, {},", bundle->records.front(), name(started.front().operation->call.collective)),
          work);
    for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
    return;
  }
  Priority priority = home.priority();  // all of them go together, as urgently as the most urgent one
  for (const Stream& stream : streams) priority = std::max(priority, stream.priority());
  home.enqueue([bundle, priority, in_background = !home.is_inline()] { bundle->run(in_background, priority); }, work);
  if (issuing.owns_lock()) issuing.unlock();
  for (std::size_t i = 1; i < streams.size(); ++i) streams[i].wait(work);
}

}  // namespace stretto
