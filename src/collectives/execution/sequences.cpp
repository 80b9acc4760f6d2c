#include "collectives/execution/sequences.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/fail.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;
using Prepared = std::shared_ptr<const Operation::State>;

Execution execution_of(const Operation::State& operation, bool alone, std::function<void(const PlanVariant&)> settled) {
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

}  // namespace

std::vector<Sequence> sequences_of(const std::vector<PendingCall>& started, const Settled& settled) {
  if (started.size() == 1 && !is_to_self(*started[0].operation)) {
    return {{execution_of(*started[0].operation, true, settled(0))}};
  }
  std::map<std::tuple<Group*, Collective, int>, std::size_t> places;
  std::map<Group*, std::pair<std::vector<Prepared>, std::vector<Prepared>>> to_self;  // sends, receives
  std::vector<Sequence> sequences;
  std::map<const Group*, int> operations;
  for (const PendingCall& one : started) ++operations[one.operation->group.get()];
  for (std::size_t i = 0; i < started.size(); ++i) {
    const PendingCall& one = started[i];
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

namespace {
// What a sequence reads or writes.
struct Access {
  std::uintptr_t begin, end;
  bool writes;
  std::size_t sequence;
};

}  // namespace

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

}  // namespace stretto
