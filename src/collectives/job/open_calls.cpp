#include "collectives/job/open_calls.hpp"

#include <algorithm>

#include "core/split_mix.hpp"
#include "device/stream/stream_queue.hpp"

namespace stretto {

OperationId id_of(const Record& record, std::uint64_t group_id, int rank_in_group) {
  int from = -1, to = -1;
  if (record.collective == Collective::send) from = rank_in_group, to = record.root;
  if (record.collective == Collective::recv) from = record.root, to = rank_in_group;
  std::uint64_t series = 0;
  for (const std::uint64_t part : {group_id, static_cast<std::uint64_t>(from + 1), static_cast<std::uint64_t>(to + 1)}) {
    series = split_mixed(series * split_mix_step + part + 1);
  }
  return {series, record.number};
}

OpenCalls::Place::Place(OpenCalls& calls, OpenCall call) : calls_(calls) {
  const std::lock_guard lock(calls_.mutex_);
  calls_.called_[call.id.series] = call.id.number;
  calls_.calls_.push_back(std::move(call));
  at_ = std::prev(calls_.calls_.end());
  const auto& caller = work_awaited_by_this_thread();
  if (!calls_.caller_) calls_.caller_ = caller;
  calls_.several_callers_ |= calls_.caller_ != caller;
}

OpenCalls::Place::~Place() {
  const std::lock_guard lock(calls_.mutex_);
  calls_.calls_.erase(at_);
}

void OpenCalls::Place::begin() {
  const std::lock_guard lock(calls_.mutex_);
  at_->begun = true;
}

std::optional<OpenCall> OpenCalls::in_the_way_of(const OperationId& wanted, int rank) const {
  const std::lock_guard lock(mutex_);
  std::optional<OpenCall> first;
  for (const OpenCall& call : calls_) {
    if (!call.begun || !is_behind(wanted, call)) continue;
    if (std::ranges::count(call.ranks, rank) > 0) return call;
    if (!first) first = call;
  }
  return first;
}

bool OpenCalls::comes_after(const OperationId& later, const OpenCall& first) const {
  const std::lock_guard lock(mutex_);
  return is_behind(later, first);
}

bool OpenCalls::is_behind(const OperationId& later, const OpenCall& first) const {
  const auto called = called_.find(later.series);
  if (called == called_.end() || called->second < later.number) return only_caller_waits_for(first);
  const auto call = std::ranges::find(calls_, later, &OpenCall::id);
  return call != calls_.end() && !call->begun && std::ranges::find_first_of(call->order, first.order) != call->order.end();
}

// Also true if the caller waits for a call that cannot begin before this one has ended.
bool OpenCalls::only_caller_waits_for(const OpenCall& call) const {
  if (several_callers_ || !caller_) return false;
  const Work::State* const awaited = *caller_;
  return awaited != nullptr && std::ranges::any_of(calls_, [&](const OpenCall& each) {
           const bool is_it = each.id == call.id;
           const bool is_behind_it = !each.begun && std::ranges::find_first_of(each.order, call.order) != each.order.end();
           return each.work.get() == awaited && (is_it || is_behind_it);
         });
}

}  // namespace stretto
