#pragma once
#include "messages/lane.hpp"
#include "messages/meeting.hpp"
#include "messages/messages.hpp"
#include "moves/group_move.hpp"

namespace stretto_torch {

// Stretto's part of a process group: a job of its ranks, a lane for its collectives, and its messages. It outlives the
// process group, because a rank that leaves a job waits for the others to leave it.
class Group {
 public:
  // Collective over the group.
  Group(const StorePtr& store, int rank, int size, Milliseconds timeout);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  stretto::Communicator world() const;  // empty after the group was left
  const std::shared_ptr<Workers>& workers() const { return workers_; }
  const std::shared_ptr<Lane>& lane() const { return lane_; }
  Messages& messages() { return *messages_; }
  // The move forgets the group's ranks when the group is left.
  void keep(const std::shared_ptr<GroupMove>& move);

  // Blocks until all operations in flight and their callbacks have ended, and the other ranks leave too; for about
  // leave_seconds. Operations that take longer are aborted. Only the first call counts.
  void leave();
  bool left() const { return left_; }
  // Tells the other ranks that this one has failed, and why.
  void abort(const std::string& reason);

 private:
  mutable std::mutex mutex_;
  stretto::Communicator world_;
  std::shared_ptr<Workers> workers_;
  std::shared_ptr<Lane> lane_;
  std::unique_ptr<Messages> messages_;
  std::vector<std::weak_ptr<GroupMove>> moves_;
  std::atomic<bool> left_ = false;
};

// All groups of this process. leave_behind() leaves a group in a thread of its own, because destroying a process group must
// not block, and ranks may destroy theirs in different orders.
void enter(const std::shared_ptr<Group>& group);
void leave_behind(std::shared_ptr<Group> group);
// The last call of a process: leaves all remaining groups, and blocks until every group is left. reason: the error that ends
// the process, which the other ranks are told; empty if there is none.
void leave_all(const std::string& reason);

}  // namespace stretto_torch
