#include "transport/wait.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <limits>
#include <thread>
#include <utility>

#include "stretto/settings.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

constexpr std::int64_t longest_sleep = 50'000'000;  // nanoseconds
// The kernel may end a sleep so much late to end several at once: what is nearer than that is not slept for.
constexpr std::int64_t sleep_slack = 60'000;
constexpr std::int64_t nobody_asked = std::numeric_limits<std::int64_t>::max();
thread_local std::int64_t next_look = nobody_asked;
constexpr int looks_first = 1000;

// Not the private form: the sleepers and the ringer may be different processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t nanoseconds) {
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // yield returns at once on most processors
#endif
}

// This process lets others' barriers reach it, and so need not fence its own rings.
bool takes_part_in_barriers() { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0; }

// Every store that any thread of the ranks has done before is visible afterwards.
bool order_stores_of_all() { return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0; }

}  // namespace

const bool Bell::fences_rings = !takes_part_in_barriers();

void Bell::prepare() {
  const bool barriers = takes_part_in_barriers() && order_stores_of_all();  // once more: this may be a fork()ed child
  needs_fence.store(barriers ? 0 : 1, std::memory_order_relaxed);
}

void Bell::wake() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void look_again_at(std::int64_t steady_nanoseconds) { next_look = std::min(next_look, steady_nanoseconds); }

std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int usable_cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                             : static_cast<int>(std::thread::hardware_concurrency());
}

WaitPolicy WaitPolicy::chosen(int local_ranks) {
  const std::string mode = setting("STRETTO_WAIT");
  if (mode == "spin") return {looks_first, INT_MAX, 0, false};
  if (mode == "yield") return {1, 0, INT_MAX, false};
  if (mode == "sleep") return {1, 0, 0, true};
  return local_ranks <= usable_cores() ? WaitPolicy{looks_first, 20, 500, true} : WaitPolicy{1, 0, 500, true};
}

WaitPolicy WaitPolicy::in_background() const {
  if (!may_sleep) return *this;  // the user has asked for spin or yield
  return {1, 0, 4, true};
}

WaitPolicy WaitPolicy::between_hosts() const {
  if (!may_sleep) return *this;
  return {50, 0, 4, true};
}

void Waiter::pause() {
  if (looks_ < INT_MAX) ++looks_;
  const std::int64_t due = std::exchange(next_look, nobody_asked);
  const int paused = looks_ - policy_.looks;
  if (paused <= policy_.spins) return relax();
  if (paused - policy_.spins <= policy_.yields || !policy_.may_sleep) {
    sched_yield();
    return;
  }
  if (!armed_) {
    bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    order_stores_of_all();
    heard_ = bell_.rings.load(std::memory_order_seq_cst);
    armed_ = true;
    return;
  }
  std::int64_t sleep = longest_sleep;
  if (due != nobody_asked) sleep = std::min(sleep, due - steady_nanoseconds() - sleep_slack);
  if (sleep > 0) {
    futex_wait(bell_.rings, heard_, sleep);
  } else {
    sched_yield();
  }
  heard_ = bell_.rings.load(std::memory_order_seq_cst);
}

// The clock is looked at when the wait is no longer short, or before its first sleep: it costs more than a look.
double Waiter::idle_seconds() {
  if (!armed_ && looks_ < policy_.looks + 16) return 0;
  const double now = now_seconds();
  if (idle_since_ == 0) idle_since_ = now;
  return now - idle_since_;
}

void Waiter::disarm() {
  bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  armed_ = false;
}

}  // namespace stretto
