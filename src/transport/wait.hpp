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
  // The owner's threads cannot make the ringers' stores visible before they sleep; then each ring() has to.
  std::atomic<std::uint32_t> needs_fence;

  void prepare();  // by the owner, before anybody rings
  // A load when nobody sleeps. The caller has published before what the sleepers look at.
  void ring() {
    if (fences_rings || needs_fence.load(std::memory_order_relaxed) != 0) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (sleepers.load(std::memory_order_relaxed) != 0) wake();
  }

 private:
  void wake();
  // Whether this process has to order its stores before its look for sleepers by itself. Where the kernel has
  // membarrier(GLOBAL_EXPEDITED), whoever goes to sleep does that for everybody, and a ring costs no fence.
  static const bool fences_rings;
};

// Cores on which this process may run.
int usable_cores();

// For what happens at a time that is known, as on a link that models one: this thread's next pause ends by then (and at most
// about 50 us later), though nobody rings. The earliest that was asked for since the last pause counts. Nothing is to come
// before, so that the pause is a sleep at once, without the policy's yields.
void look_again_at(std::int64_t steady_nanoseconds);
// For what has to be noticed by then, while what is waited for may come at any time: if the next pause is a sleep, it ends
// about then. Whether it is one stays the policy's affair. The earliest counts here, too.
void look_again_by(std::int64_t steady_nanoseconds);
// What this thread has asked for and not paused for is of a wait that is over.
void forget_looks();
std::int64_t steady_nanoseconds();  // now; the same clock in all processes of a host

struct WaitPolicy {
  int looks = 0;   // without a pause between them: a few hundred nanoseconds in which the answer most often comes
  int spins = 0;   // looks without leaving the core
  int yields = 0;  // looks with sched_yield between
  bool may_sleep = true;
  // A pause that look_again_at() ends does so about then, on the core; else by a plain sleep, up to 100 us later.
  bool punctual = true;
  static WaitPolicy chosen(int local_ranks);  // from STRETTO_WAIT and the number of cores
  // For a thread that waits beside its own rank's computation: gives up the core at once, and takes no more of it for being
  // punctual. It sleeps and never yields: Linux takes a yield for the rest of a time slice, and lets who yields wait longer
  // than who is woken.
  WaitPolicy in_background() const;
  // Where answers take tens of microseconds at best, and a look is a system call.
  WaitPolicy between_hosts() const;
};

// One wait of one thread. Call pause() after every look that found nothing, moved() after one that found something.
class Waiter {
 public:
  Waiter(const WaitPolicy& policy, Bell& bell) : policy_(policy), bell_(bell) {}
  ~Waiter() {
    if (armed_) disarm();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // True while the wait is so short that the caller need not look for a lost peer or a timeout.
  bool pause_briefly() {
    if (looks_ >= policy_.looks) return false;
    ++looks_;
    return true;
  }
  // Sleeps are bounded, so that the caller's loop sees a lost peer or a timeout.
  void pause();  // calls what the thread wants done meanwhile: stretto::while_waiting()
  void moved() {
    looks_ = 0;
    idle_since_ = 0;
    if (armed_) disarm();
  }
  double idle_seconds();  // since about the last moved(); for timeouts

 private:
  void disarm();

  const WaitPolicy& policy_;
  Bell& bell_;
  int looks_ = 0;
  bool armed_ = false;      // counted among the sleepers: one more look, then sleep
  bool hears_all_ = false;  // no ring that comes after that look is missed
  std::uint32_t heard_ = 0;
  double idle_since_ = 0;  // 0: nobody has asked
};

}  // namespace stretto
