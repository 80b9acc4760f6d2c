#include "transport/wait.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <thread>

#include "stretto/settings.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr int longest_sleep_ms = 50;

// Not the private form: the sleepers and the ringer may be different processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, int milliseconds) {
  const timespec limit{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Bell::ring() {
  // Orders the caller's publication before the look for sleepers; pairs with the read-modify-write of arming.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_relaxed) == 0) return;
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int usable_cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                             : static_cast<int>(std::thread::hardware_concurrency());
}

WaitPolicy WaitPolicy::chosen(int local_ranks) {
  const std::string mode = setting("STRETTO_WAIT");
  if (mode == "spin") return {INT_MAX, 0, false};
  if (mode == "yield") return {0, INT_MAX, false};
  if (mode == "sleep") return {0, 0, true};
  return {local_ranks <= usable_cores() ? 2000 : 0, 500, true};
}

WaitPolicy WaitPolicy::in_background() const {
  if (!may_sleep) return *this;  // the user has asked for spin or yield
  return {0, 4, true};
}

WaitPolicy WaitPolicy::between_hosts() const {
  if (!may_sleep) return *this;
  return {std::min(spins, 50), 4, true};
}

void Waiter::pause() {
  if (looks_ == 0) idle_since_ = now_seconds();
  if (looks_ < INT_MAX) ++looks_;
  if (looks_ <= policy_.spins) return relax();
  if (looks_ - policy_.spins <= policy_.yields || !policy_.may_sleep) {
    sched_yield();
    return;
  }
  if (!armed_) {
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    heard_ = bell_.rings.load(std::memory_order_seq_cst);
    armed_ = true;
    return;
  }
  futex_wait(bell_.rings, heard_, longest_sleep_ms);
  heard_ = bell_.rings.load(std::memory_order_seq_cst);
}

void Waiter::moved() {
  looks_ = 0;
  disarm();
}

double Waiter::idle_seconds() const { return looks_ == 0 ? 0 : now_seconds() - idle_since_; }

void Waiter::disarm() {
  if (armed_) bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  armed_ = false;
}

}  // namespace stretto
