#pragma once
#include <atomic>
#include <cstdint>

// One policy for all waits. Ranks often outnumber cores, and a spinning wait then keeps the core from the rank that has
// work; a futex at every wait costs 20 times a yield. So a wait spins if every rank has a core, then yields, and sleeps when
// it gets long.
namespace stretto {

// A word in shared memory on which the threads of one rank sleep. A rank that changes something that they may wait for must
// ring.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
  // Not 0 if the owner's threads cannot make the ringers' stores visible before they sleep; each ring() then has to.
  std::atomic<std::uint32_t> needs_fence;

  void prepare();  // the owner calls it before the first ring()
  // Costs a load if no thread sleeps. The caller must first have published the change that the sleepers look for.
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
  // Whether this process has to order its stores before its look for sleepers by itself. If the kernel has
  // membarrier(GLOBAL_EXPEDITED), the thread that goes to sleep does that for all, and a ring costs no fence.
  static const bool fences_rings;
};

// Called between two looks by a thread that keeps its core.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield returns at once on most processors
#endif
}

// The number of cores on which this process may run.
int usable_cores();

// For an event at a known time, as on a modelled link: this thread's next pause ends by then (and at most about 50 us
// later), although no rank rings. The earliest time asked for since the last pause counts. Since nothing comes before, the
// pause is a sleep at once, without the policy's yields.
void look_again_at(std::int64_t steady_nanoseconds);
// For a second event that must be noticed by a known time, while the awaited one may come at any time. If the next pause is
// a sleep (the policy decides), it ends about then. The earliest time counts here, too.
void look_again_by(std::int64_t steady_nanoseconds);
// Discards the times that this thread has asked for: they are of a wait that has already ended.
void forget_looks();
std::int64_t steady_nanoseconds();  // now; the same clock in all processes of a host

struct WaitPolicy {
  int looks = 0;   // without a pause between them: some hundred nanoseconds, in which the answer most often comes
  int spins = 0;   // looks without leaving the core
  int yields = 0;  // looks with sched_yield between
  bool may_sleep = true;
  // Whether a pause that look_again_at() ends waits for that time on the core; else it sleeps, and ends up to 100 us later.
  bool punctual = true;
  // Looks without leaving the core for a rank on another core, while all ranks that share this one's wait as well: giving
  // the core up and getting it back takes longer than such an answer most often does.
  int looks_with_idle_mates = 0;
  static WaitPolicy chosen(int local_ranks);  // from STRETTO_WAIT and the number of cores
  // For a thread that waits beside its own rank's computation: gives up the core at once, and uses none of it to be
  // punctual. It sleeps and never yields: for Linux a yield gives up the rest of a time slice, and a thread that yields
  // waits longer than one that is woken.
  WaitPolicy in_background() const;
  // For links on which answers take tens of microseconds at best, and a look is a system call.
  WaitPolicy between_hosts() const;
};

// One wait of one thread. Call pause() after every look that found nothing, and moved() after one that found something.
class Waiter {
 public:
  Waiter(const WaitPolicy& policy, Bell& bell) : policy_(policy), bell_(bell) {}
  ~Waiter() {
    if (armed_) disarm();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // Returns true while the wait is so short that the caller need not look for a lost peer or a timeout.
  bool pause_briefly() {
    if (looks_ >= policy_.looks) return false;
    ++looks_;
    return true;
  }
  // Sleeps are bounded, so that the caller's loop sees a lost peer or a timeout. Calls the thread's function, if it has
  // given one: stretto::while_waiting().
  void pause();
  void moved() {
    looks_ = 0;
    idle_since_ = 0;
    if (armed_) disarm();
  }
  double idle_seconds();  // since the last moved(), or shortly after it; timeouts ask for them

 private:
  void disarm();

  const WaitPolicy& policy_;
  Bell& bell_;
  int looks_ = 0;
  bool armed_ = false;      // counted among the sleepers: one more look, then sleep
  bool hears_all_ = false;  // no ring that comes after that look is missed
  std::uint32_t heard_ = 0;
  double idle_since_ = 0;  // 0: the clock has not been read
};

}  // namespace stretto
