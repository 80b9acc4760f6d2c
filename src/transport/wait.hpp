#pragma once
#include <atomic>
#include <cstdint>

// Waiting is one policy. Ranks often outnumber cores, and a spinning wait then keeps the core from the rank that has work; a
// futex at every wait costs 20 times a yield. So: spin while every rank has a core, then yield, and sleep when the wait gets
// long.
namespace stretto {

// A word in shared memory on which the threads of one rank sleep. Whoever changes something that they may wait for rings.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;

  void ring();  // a fence and one load when nobody sleeps
};

// Cores on which this process may run.
int usable_cores();

struct WaitPolicy {
  int spins = 0;   // looks without leaving the core
  int yields = 0;  // looks with sched_yield between
  bool may_sleep = true;
  static WaitPolicy chosen(int local_ranks);  // from STRETTO_WAIT and the number of cores
  // For a thread that waits beside its own rank's computation: gives up the core at once.
  WaitPolicy in_background() const;
  // Where answers take tens of microseconds at best, and a look is a system call.
  WaitPolicy between_hosts() const;
};

// One wait of one thread. Call pause() after every look that found nothing, moved() after one that found something.
class Waiter {
 public:
  Waiter(const WaitPolicy& policy, Bell& bell) : policy_(policy), bell_(bell) {}
  ~Waiter() { disarm(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Sleeps are bounded, so that the caller's loop sees a lost peer or a timeout.
  void pause();
  void moved();
  double idle_seconds() const;  // since the last moved()

 private:
  void disarm();

  WaitPolicy policy_;
  Bell& bell_;
  int looks_ = 0;
  bool armed_ = false;  // counted among the sleepers: one more look, then sleep
  std::uint32_t heard_ = 0;
  double idle_since_ = 0;
};

}  // namespace stretto
