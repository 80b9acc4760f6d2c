#include "group.hpp"

#include <unistd.h>

#include <condition_variable>
#include <vector>

namespace stretto_torch {
namespace {

struct Groups {
  std::mutex mutex;
  std::vector<std::weak_ptr<Group>> all;
  int leaving = 0;  // threads that leave a group
  std::condition_variable changed;
  const pid_t process = getpid();  // a fork()ed child has a copy of these groups, but is not one of their ranks
};

Groups& groups() {
  static auto& known = *new Groups;  // never destroyed: threads may still use it when the process ends
  return known;
}

}  // namespace

Group::Group(const StorePtr& store, int rank, int size, Milliseconds timeout)
    : world_(meet(store, rank, size, timeout)),
      workers_(std::make_shared<Workers>()),
      lane_(std::make_shared<Lane>("torch", workers_)),
      messages_(std::make_unique<Messages>(store, world_)) {
  world_.job().set_leave_timeout(leave_seconds);
}

stretto::Communicator Group::world() const {
  const std::lock_guard lock(mutex_);
  return world_;
}

void Group::leave() {
  if (left_.exchange(true)) return;
  const auto until = Messages::Clock::now() + std::chrono::seconds(static_cast<int>(leave_seconds));
  if (!lane_->drain(until)) {
    world_.job().abort("it has left the group while an operation was under way.");
    lane_->drain(Messages::Clock::now() + std::chrono::seconds(5));
  }
  messages_->leave(until);
  workers_->close(until);
  std::vector<std::weak_ptr<GroupMove>> moves;
  {
    const std::lock_guard lock(mutex_);
    std::swap(moves, moves_);
  }
  for (const std::weak_ptr<GroupMove>& each : moves) {
    if (const std::shared_ptr<GroupMove> move = each.lock()) move->forget();
  }
  stretto::Communicator last;  // destroyed after the mutex is released, because its end waits for the other ranks
  const std::lock_guard lock(mutex_);
  std::swap(last, world_);
}

void Group::keep(const std::shared_ptr<GroupMove>& move) {
  const std::lock_guard lock(mutex_);
  std::erase_if(moves_, [&](const std::weak_ptr<GroupMove>& each) { return each.expired() || each.lock() == move; });
  moves_.push_back(move);
}

void Group::abort(const std::string& reason) {
  if (const stretto::Communicator ranks = world()) ranks.job().abort(reason);
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
    new std::shared_ptr<Group>(std::move(group));  // never destroyed in a fork()ed child: its threads are the parent's
    return;
  }
  const std::lock_guard lock(groups().mutex);
  std::thread([group = std::move(group)]() mutable {
    group->leave();
    group.reset();
    std::unique_lock last(groups().mutex);
    --groups().leaving;
    std::notify_all_at_thread_exit(groups().changed, std::move(last));
  }).detach();
  ++groups().leaving;
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
  std::unique_lock lock(groups().mutex);
  groups().changed.wait(lock, [] { return groups().leaving == 0; });
}

}  // namespace stretto_torch
