#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "transport/bootstrap/job.hpp"

namespace stretto {

// The order of one communicator's operations: they run one at a time, in the order of the calls, whatever their streams.
class Turns {
 public:
  // job must outlive this object. communicator: its name.
  Turns(JobControl& job, std::string communicator) : job_(job), communicator_(std::move(communicator)) {}

  // Whether no operation is in flight or in a stream, so that one may begin in the calling thread.
  bool is_idle() const {
    return next_.load(std::memory_order_acquire) == current_.load(std::memory_order_acquire) &&
           !broken_.load(std::memory_order_relaxed);
  }
  // An operation has failed half-way: the communicator is unusable from now on.
  void give_up();
  bool gave_up() const { return broken_; }
  void check_usable() const;  // throws the reason if the communicator is unusable

 private:
  friend class Turn;
  JobControl& job_;
  std::string communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Written under the mutex; read without it by operations of the inline fast path.
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint64_t> current_ = 0;
  std::atomic<bool> broken_ = false;
};

// The place of one operation in that order. A turn that is destroyed without done() makes the communicator unusable: its
// operation failed, or never ran because its stream had failed, and the other ranks count on it.
class Turn {
 public:
  explicit Turn(std::shared_ptr<Turns> turns);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  void wait();  // blocks until all earlier turns are done; throws if the communicator is unusable
  void done() { finish(false); }

 private:
  void finish(bool failed);
  std::shared_ptr<Turns> turns_;
  std::uint64_t number_;
  bool done_ = false;
};

}  // namespace stretto
