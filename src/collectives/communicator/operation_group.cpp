#include "collectives/communicator/operation_group.hpp"

#include <thread>
#include <vector>

#include "collectives/communicator/launched_group.hpp"
#include "core/fail.hpp"

namespace stretto {
namespace {

struct CollectedCalls {
  Work work;
  std::vector<PendingCall> calls;
};
thread_local CollectedCalls collected;

}  // namespace

Work collect_in_group(PendingCall call) {
  collected.calls.push_back(std::move(call));
  return collected.work;
}

OperationGroup::OperationGroup() : thread_(std::this_thread::get_id()), first_(collected.calls.size()) {
  if (operation_group_depth++ == 0) collected.work = Work::reserve();
}

OperationGroup::~OperationGroup() {
  if (!open_) return;
  collected.calls.erase(collected.calls.begin() + static_cast<std::ptrdiff_t>(first_), collected.calls.end());
  if (--operation_group_depth == 0) collected = {};
}

Work OperationGroup::end() {
  require(open_, "This group of operations has already ended.");
  require(thread_ == std::this_thread::get_id(), "A group of operations ends in the thread that began it.");
  open_ = false;
  if (--operation_group_depth > 0) return collected.work;
  const CollectedCalls all = std::exchange(collected, {});
  launch(all.calls, all.work);
  return all.work;
}

}  // namespace stretto
