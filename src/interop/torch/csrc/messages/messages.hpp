#pragma once
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "messages/meeting.hpp"
#include "work.hpp"

namespace stretto_torch {

class Channel;

// Seconds for which a rank that leaves a group waits for the others to leave it too.
constexpr double leave_seconds = 5;

// Messages between two ranks, with tags. A message waits only for its sender and its receiver: neither for the group's
// collectives nor for messages to other ranks. That takes a job of the two ranks, a thread that sends and a thread that
// receives, for each peer that is ever used. They are made with the first message.
//
// A message goes to the earliest receive whose source and tag match. If no receive matches, it is kept until one comes.
class Messages {
 public:
  static constexpr int any_source = -1;
  using Clock = std::chrono::steady_clock;

  // main: the group's communicator, which detects a lost rank.
  Messages(StorePtr store, stretto::Communicator main);
  ~Messages();  // must follow leave()
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // The tensor must be contiguous.
  void send(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int to, int tag, Milliseconds timeout);
  // Any dense tensor. A tensor that is not contiguous is filled when the whole message has arrived.
  void receive(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int from, int tag,
               Milliseconds timeout);

  // Blocks until every peer has received the messages to it, and has sent its last one. A peer that is not at this point by
  // `until` is told that this rank is gone.
  void leave(Clock::time_point until);
  void abort(const std::string& reason);

 private:
  friend class Channel;
  using Works = std::vector<c10::intrusive_ptr<OperationWork>>;
  struct Receive {
    c10::intrusive_ptr<OperationWork> work;
    at::Tensor tensor;     // contiguous
    at::Tensor copies_to;  // the caller's tensor, if that is not contiguous
    int from = any_source;
    std::int64_t tag = 0;
    Clock::time_point deadline;
  };
  struct Arrived {  // before a receive asked for it
    int from = 0;
    std::int64_t tag = 0;
    at::Tensor bytes;
  };
  // Ends the receive with these bytes, which are copied unless they lie in its tensor already.
  static void fill(const Receive& receive, const at::Tensor& bytes);

  // The caller must hold the mutex:
  Channel& channel(int peer);
  bool wanted_from(int peer) const;
  void end_receives(int peer, Works& ending);  // removes the receives that might be for this peer
  void end_with(Works works, const std::exception_ptr& error);
  std::exception_ptr late(const Receive& receive) const;

  void watch();

  StorePtr store_;
  stretto::Communicator main_;
  const int rank_, size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<Channel>> channels_;
  std::list<Receive> receives_;  // receives without a message, in the order of the calls
  std::list<Arrived> arrived_;   // in the order of arrival
  std::vector<std::pair<Works, std::exception_ptr>> ending_;
  bool closing_ = false;
  bool watching_ = true;
  std::thread watcher_;  // watches deadlines and tells works that they have failed; starts with the first message
};

}  // namespace stretto_torch
