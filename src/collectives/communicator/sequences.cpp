#include "collectives/communicator/sequences.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

using Group = Communicator::Group;

// i: the number of the call. alone: it is the only call on its communicator.
Execution execution_of(const Operation::State& operation, std::size_t i, bool alone) {
  const Call& call = operation.call;
  Group& group = *operation.group;
  Execution execution;
  execution.planned = operation.planned.get();
  execution.buffers = buffers_of(call, operation.options.factor);
  execution.links = &group.links();
  execution.first_lane = is_message(call.collective) ? Links::message_lane : 0;
  execution.shared = group.shared_memory();
  execution.gpu_links = group.gpu_links();
  execution.call = i;
  if (operation.options.quantization.format != QuantizedFormat::none) execution.quantizing = operation.quantizing();
  if (group.context().checks_calls()) {
    CheckedCall checked = checked_call(call, operation.options);
    checked.alone = alone;
    if (const std::string& plan = operation.variant().record->plan; !plan.empty()) checked.quantized += ", " + plan;
    execution.preamble = std::make_shared<CallComparison>(group.call_check(), std::move(checked));
  }
  return execution;
}

// A message from a rank to itself. The k-th send and the k-th receive of a group form a pair.
Execution copy_to_self(const Operation::State& send, const Operation::State& receive) {
  require(send.call.count == receive.call.count && send.call.dtype == receive.call.dtype,
          "Rank {} sends itself {} {} and expects {} {}.", send.group->rank(), send.call.count, name(send.call.dtype),
          receive.call.count, name(receive.call.dtype));
  auto planned = std::make_shared<PlannedCall>();
  planned->ordinary.plan =
      std::make_shared<Plan>(make_plan({Collective::broadcast, Algorithm::binomial, 0, 1, send.call.count}));
  planned->ordinary.wire = send.call.dtype;
  planned->symmetric = planned->ordinary;
  Execution execution;
  execution.planned = planned.get();
  execution.own_plan = std::move(planned);
  execution.buffers = buffers_of(send.call, 1);
  execution.buffers.output = static_cast<std::byte*>(receive.call.output);
  execution.links = &send.group->links();
  execution.gpu_links = send.group->gpu_links();
  return execution;
}

// Memory that a sequence reads or writes.
struct MemoryAccess {
  std::uintptr_t begin, end;
  bool writes;
  std::size_t sequence;
};

}  // namespace

std::vector<Sequence> sequences_of(const std::vector<PendingCall>& calls) {
  if (calls.size() == 1 && !calls[0].operation->is_to_self()) return {{execution_of(*calls[0].operation, 0, true)}};
  std::map<std::tuple<Group*, Collective, int>, std::size_t> places;
  struct ToSelf {
    std::vector<const Operation::State*> sends, receives;
  };
  std::map<Group*, ToSelf> to_self;
  std::vector<Sequence> sequences;
  std::map<const Group*, int> operations;
  for (const PendingCall& one : calls) ++operations[one.operation->group.get()];
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Operation::State& operation = *calls[i].operation;
    Group* const group = operation.group.get();
    if (operation.is_to_self()) {
      ToSelf& messages = to_self[group];
      (operation.call.collective == Collective::send ? messages.sends : messages.receives).push_back(&operation);
      continue;
    }
    const auto key = is_message(operation.call.collective)
                         ? std::make_tuple(group, operation.call.collective, operation.call.root)
                         : std::make_tuple(group, Collective::barrier, -1);
    const auto [place, is_new] = places.emplace(key, sequences.size());
    if (is_new) sequences.emplace_back();
    sequences[place->second].push_back(execution_of(operation, i, operations[group] == 1));
  }
  for (const auto& [group, messages] : to_self) {
    require(messages.sends.size() == messages.receives.size(),
            "Rank {} sends itself {} messages and receives {} in one group of operations; the others would never come.",
            group->rank(), messages.sends.size(), messages.receives.size());
    for (std::size_t i = 0; i < messages.sends.size(); ++i) {
      sequences.push_back({copy_to_self(*messages.sends[i], *messages.receives[i])});
    }
  }
  return sequences;
}

void check_apart(const std::vector<Sequence>& sequences) {
  std::vector<MemoryAccess> all;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (const Execution& execution : sequences[i]) {
      const PlanRequest& request = execution.planned->ordinary.plan->request;
      if (request.collective == Collective::barrier) continue;
      const auto add = [&](const void* data, std::int64_t count, DType dtype, bool writes) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (count > 0) all.push_back({begin, begin + static_cast<std::uintptr_t>(count) * size_of(dtype), writes, i});
      };
      add(execution.buffers.input, input_count(request), execution.buffers.dtype, false);
      add(execution.buffers.output, output_count(request), execution.buffers.dtype, true);
      if (!execution.quantizing) continue;
      for (const Tensor& state : execution.quantizing->residuals) add(state.raw(), state.size(), state.dtype(), true);
    }
  }
  std::sort(all.begin(), all.end(), [](const MemoryAccess& a, const MemoryAccess& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && all[j].begin < all[i].end; ++j) {
      require(all[i].sequence == all[j].sequence || (!all[i].writes && !all[j].writes),
              "Two operations of one group of operations use {} bytes of the same memory at the same time, and one of them "
              "writes there; give them buffers of their own.",
              std::min(all[i].end, all[j].end) - all[j].begin);
    }
  }
}

}  // namespace stretto
