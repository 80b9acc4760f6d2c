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

// How long who leaves a group waits for the others to leave it, too.
constexpr double leave_seconds = 5;

// Messages between two ranks, with tags. They wait for nobody but the rank that they go to or come from: neither for the
// group's collectives nor for messages to others. That takes, for each peer that is ever used, a job of the two ranks, a
// thread that sends and a thread that receives; they come with the first message.
//
// A message goes to the earliest receive here that fits it by source and tag; where none does, it is kept until one comes.
class Messages {
 public:
  static constexpr int any_source = -1;
  using Clock = std::chrono::steady_clock;

  // main: the group's communicator, which knows when a rank is lost.
  Messages(StorePtr store, stretto::Communicator main);
  ~Messages();  // after leave()
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // The tensor is contiguous.
  void send(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int to, int tag, Milliseconds timeout);
  // Any tensor that is dense; one that is not contiguous is filled when all has come.
  void receive(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int from, int tag,
               Milliseconds timeout);

  // Waits until peers have got what was sent to them and have nothing more to say; who has not come to that end by then is
  // told that this rank is gone.
  void leave(Clock::time_point until);
  void abort(const std::string& reason);

 private:
  friend class Channel;
  using Works = std::vector<c10::intrusive_ptr<OperationWork>>;
  struct Receive {
    c10::intrusive_ptr<OperationWork> work;
    at::Tensor tensor;     // contiguous ...
    at::Tensor copies_to;  // ... and this one gets what has come, where it is another
    int from = any_source;
    std::int64_t tag = 0;
    Clock::time_point deadline;
  };
  struct Arrived {  // before anybody asked
    int from = 0;
    std::int64_t tag = 0;
    at::Tensor bytes;
  };
  // Ends the receive with these bytes: a copy, unless they lie in its tensor already.
  static void fill(const Receive& receive, const at::Tensor& bytes);

  // With the mutex held:
  Channel& channel(int peer);
  bool wanted_from(int peer) const;
  void end_receives(int peer, Works& ending);  // takes those out that might be for this peer
  void end_with(Works works, const std::exception_ptr& error);
  std::exception_ptr late(const Receive& receive) const;

  void watch();

  StorePtr store_;
  stretto::Communicator main_;
  const int rank_, size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::unique_ptr<Channel>> channels_;
  std::list<Receive> receives_;  // that nothing has come for, in the order of the calls
  std::list<Arrived> arrived_;   // in the order in which they came
  std::vector<std::pair<Works, std::exception_ptr>> ending_;
  bool closing_ = false;
  bool watching_ = true;
  std::thread watcher_;  // of deadlines; it also tells works that they have failed. Comes with the first message
};

}  // namespace stretto_torch
