#pragma once
#include "messages/lane.hpp"
#include "messages/meeting.hpp"
#include "messages/messages.hpp"

namespace stretto_torch {

// What a process group has of Stretto: a job of its ranks, a lane for its collectives, and its messages. It outlives the
// process group, for leaving it takes the other ranks.
class Group {
 public:
  // Collective over the group.
  Group(const StorePtr& store, int rank, int size, Milliseconds timeout);
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  stretto::Communicator world() const;  // none any more, once it is left
  const std::shared_ptr<Workers>& workers() const { return workers_; }
  const std::shared_ptr<Lane>& lane() const { return lane_; }
  Messages& messages() { return *messages_; }

  // Waits for what is under way, callbacks included, and for the other ranks, leave_seconds in all at most. The first call
  // counts.
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
  std::atomic<bool> left_ = false;
};

// All groups of this process. Those of process groups that are gone are left by threads of their own: destroying a process
// group does not block, and ranks may destroy theirs in different orders.
void enter(const std::shared_ptr<Group>& group);
void leave_behind(std::shared_ptr<Group> group);
// The last call of a process: leaves what is left, and waits until everything is. reason: not empty where an error ends the
// process; the other ranks learn it.
void leave_all(const std::string& reason);

}  // namespace stretto_torch
