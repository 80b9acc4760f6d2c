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

// What a stand-in for a GPU is made of: queues that threads work through.
namespace stretto {

// A place in a stream, and when it was reached.
class Marker {
 public:
  void reach(double seconds);
  bool reached() const;
  void wait() const;
  double seconds() const;  // once reached

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool reached_ = false;
  double seconds_ = 0;
};

// The first error of any function in any stream: a GPU that has failed does nothing any more, and says so when asked.
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
    int longest_us = 0;  // before every other function, by chance; 0: none
  };
  HostStream(std::shared_ptr<Failure> failure, Delays delays);
  ~HostStream();  // waits for what is in it
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // always: also when the GPU has failed, such as what lets others go on.
  void put(std::function<void()> function, bool always = false);
  void close();  // nothing more will be put; what is there still happens
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
