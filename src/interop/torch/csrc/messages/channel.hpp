#pragma once
#include <deque>
#include <optional>
#include <thread>

#include "messages/messages.hpp"

namespace stretto_torch {

// The connection of two ranks for their messages. It is a job of these two ranks, with one communicator for each direction
// and a thread at each end of it. A message is a head, followed by its bytes. A rank that leaves says so in its last head.
class Channel {
 public:
  struct Send {
    c10::intrusive_ptr<OperationWork> work;
    at::Tensor tensor;
    std::int64_t tag = 0;
    Messages::Clock::time_point deadline;
  };

  Channel(Messages& messages, int peer);
  ~Channel();  // joins the threads, and leaves the job
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // The caller must hold the mutex of the messages:
  void push(Send send);
  bool has_ended() const { return ended_ == 2; }
  Messages::Clock::time_point next_deadline() const;
  void break_if_late(Messages::Clock::time_point now);
  // Ends the threads, and ends all work in flight with this error.
  void break_with(const std::exception_ptr& error);
  const std::exception_ptr& broken() const { return broken_; }

 private:
  using Lock = std::unique_lock<std::mutex>;  // of the messages' mutex
  struct Head {
    std::int64_t tag;
    std::int64_t bytes;  // negative: this is the last head
  };
  bool connect();
  void send_messages();
  void receive_messages();
  void receive_message(Lock& lock, const Head& head);
  void run(void (Channel::*loop)());
  std::exception_ptr in_our_words(const std::exception_ptr& error) const;

  Messages& all_;
  const int peer_;
  std::deque<Send> sends_;  // the first is being sent
  std::optional<Messages::Receive> receiving_;
  std::exception_ptr broken_;
  int ended_ = 0;  // threads that have ended
  std::mutex connecting_;
  bool connected_ = false;  // guarded by connecting_; the communicators are guarded by both mutexes
  stretto::Communicator out_, in_;
  std::thread sender_, receiver_;
};

}  // namespace stretto_torch
