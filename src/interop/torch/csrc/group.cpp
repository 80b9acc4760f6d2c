#include "group.hpp"

#include <unistd.h>

#include <vector>

namespace stretto_torch {
namespace {

struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> all;
  std::vector<std::thread> leaving;
  const pid_t process = getpid();  // a fork()ed child has the memory of these groups, and no part in them
};

Groups& groups() {
  static auto& known = *new Groups;  // threads may still use it when the process ends
  return known;
}

}  // namespace

Group::Group(const StorePtr& store, int rank, int size, Milliseconds timeout)
    : world_(meet(store, rank, size, timeout)),
      lane_(std::make_shared<Lane>("torch")),
      messages_(std::make_unique<Messages>(store, world_)) {
  world_.set_leave_timeout(leave_seconds);
}

void Group::leave() {
  if (left_.exchange(true)) return;
  const auto until = Messages::Clock::now() + std::chrono::seconds(static_cast<int>(leave_seconds));
  if (!lane_->drain(until)) {
    world_.abort("it has left the group while an operation was under way.");
    lane_->drain(Messages::Clock::now() + std::chrono::seconds(5));
  }
  messages_->leave(until);
  world_ = {};
}

void Group::abort(const std::string& reason) {
  world_.abort(reason);
  messages_->abort(reason);
}

void enter(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(groups().mutex);
  std::erase_if(groups().all, [](const std::weak_ptr<Group>& each) { return each.expired(); });
  groups().all.push_back(group);
}

void leave_behind(std::shared_ptr<Group> group) {
  if (group->left()) return;
  if (getpid() != groups().process) {
    new std::shared_ptr<Group>(std::move(group));  // kept for ever: its threads are the parent's
    return;
  }
  const std::lock_guard lock(groups().mutex);
  groups().leaving.emplace_back([group = std::move(group)]() mutable {
    group->leave();
    group.reset();
  });
}

void leave_all(const std::string& reason) {
  if (getpid() != groups().process) return;
  std::vector<std::weak_ptr<Group>> all;
  {
    const std::lock_guard lock(groups().mutex);
    all = std::exchange(groups().all, {});
  }
  for (const std::weak_ptr<Group>& each : all) {
    std::shared_ptr<Group> group = each.lock();
    if (!group) continue;
    if (!reason.empty()) group->abort(reason);
    leave_behind(std::move(group));
  }
  std::vector<std::thread> leaving;
  {
    const std::lock_guard lock(groups().mutex);
    leaving = std::exchange(groups().leaving, {});
  }
  for (std::thread& thread : leaving) thread.join();
}

}  // namespace stretto_torch
