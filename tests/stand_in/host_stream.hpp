#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

// The streams of a stand-in for a GPU: queues of functions, each with a thread that calls them.
namespace stretto {

// A point in a stream, and the time when the stream reached it.
class Marker {
 public:
  void reach(double seconds);
  bool reached() const;
  void wait() const;
  double seconds() const;  // valid once reached

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  double seconds_ = 0;
};

// The first error of any function in any stream. A GPU that has failed runs no further functions and reports the error to
// every query.
class Failure {
 public:
  void note(const std::string& what);
  std::string what() const;  // empty: none

 private:
  mutable std::mutex mutex_;
  std::string what_;
};

// Functions that one thread calls in order.
class HostStream {
 public:
  struct Delays {
    std::uint64_t seed = 0;
    int longest_us = 0;  // before about half of the functions, at random; 0: none
  };
  HostStream(std::shared_ptr<Failure> failure, Delays delays);
  ~HostStream();  // waits for all functions in it
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // always: the function runs even if the GPU has failed, for example because other streams wait for it.
  void put(std::function<void()> function, bool always = false);
  void close();  // no function will be put any more; those in the queue still run
  bool ended() const;

 private:
  struct Entry {
    std::function<void()> function;
    bool always;
  };
  void work_through();
  void sleep();

  std::shared_ptr<Failure> failure_;
  std::mt19937_64 chance_;
  int longest_us_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> entries_;
  bool closing_ = false;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace stretto
