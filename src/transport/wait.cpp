#include "transport/wait.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/prctl.h>
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
constexpr std::int64_t time_to_wake = 50'000;       // nanoseconds from the end of a sleep; mostly less
constexpr std::int64_t nobody_asked = std::numeric_limits<std::int64_t>::max();
// Every operation resets next_look and latest_look, so access must not need a function call.
//
// The time that look_again_at() has set: the awaited event cannot happen before it.
[[gnu::tls_model("initial-exec")]] thread_local std::int64_t next_look = nobody_asked;
// The time that look_again_by() has set: the awaited event can happen before it, too; no sleep goes on after it.
[[gnu::tls_model("initial-exec")]] thread_local std::int64_t latest_look = nobody_asked;
constexpr std::int64_t longest_nap = 1'000'000;  // nanoseconds by which a missed ring may be late
constexpr int looks_first = 1000;
constexpr int looks_beside_mates = 100;  // one to five microseconds, by the processor
thread_local Meanwhile meanwhile;
constexpr int pauses_between = 8;  // between two calls of meanwhile.function, while pauses are short

// Not the private form: the sleepers and the ringer may be different processes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t nanoseconds) {
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wait_punctually(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t nanoseconds) {
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1);  // else the kernel may add 50 us, so that several sleeps end at once
  futex_wait(word, expected, std::min(nanoseconds, longest_sleep));
  prctl(PR_SET_TIMERSLACK, slack);
}

// Lets barriers of other processes reach this process, so that its own rings need no fence.
bool takes_part_in_barriers() { return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0; }

// Makes all earlier stores of all threads of the ranks visible.
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

void look_again_by(std::int64_t steady_nanoseconds) { latest_look = std::min(latest_look, steady_nanoseconds); }

void forget_looks() { next_look = latest_look = nobody_asked; }

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
  return local_ranks <= usable_cores() ? WaitPolicy{looks_first, 20, 500, true}
                                       : WaitPolicy{1, 0, 500, true, true, looks_beside_mates};
}

WaitPolicy WaitPolicy::in_background() const {
  if (!may_sleep) return *this;  // the user has asked for spin or yield
  return {1, 0, 0, true, false};
}

WaitPolicy WaitPolicy::between_hosts() const {
  if (!may_sleep) return *this;
  return {50, 0, 4, true};
}

Meanwhile while_waiting(const Meanwhile& next) { return std::exchange(meanwhile, next); }

void Waiter::pause() {
  if (looks_ < INT_MAX) ++looks_;
  if (meanwhile.function != nullptr && (armed_ || looks_ % pauses_between == 0)) {
    meanwhile.function();
    const auto interval = static_cast<std::int64_t>(meanwhile.seconds * 1e9);
    if (interval < longest_sleep) look_again_by(steady_nanoseconds() + interval);
  }
  const bool timed = next_look != nobody_asked;
  const bool bounded = timed || latest_look != nobody_asked;
  const std::int64_t end = std::min(next_look - (policy_.punctual ? time_to_wake : 0), latest_look);
  const std::int64_t left = bounded ? end - steady_nanoseconds() : longest_sleep;
  forget_looks();
  const int paused = looks_ - policy_.looks;
  if (paused <= policy_.spins) return relax();
  // If the event is known to come later, the thread sleeps at once; if it is near, there is no time for a sleep.
  if (left <= 0 && policy_.may_sleep && policy_.yields == 0) return;
  const bool yields = left <= 0 || (!timed && paused - policy_.spins <= policy_.yields);
  if (yields || !policy_.may_sleep) {
    sched_yield();
    return;
  }
  // Ordering the stores of all threads interrupts every core. A nap does not need it: it is over before a missed ring would
  // matter.
  const bool naps = left <= longest_nap;
  if (!armed_ || (!hears_all_ && !naps)) {
    if (!armed_) bell_.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!naps) order_stores_of_all();
    heard_ = bell_.rings.load(std::memory_order_seq_cst);
    armed_ = true;
    hears_all_ = !naps;
    return;
  }
  if (timed && policy_.punctual) {
    futex_wait_punctually(bell_.rings, heard_, left);
  } else {
    futex_wait(bell_.rings, heard_, std::min(left, longest_sleep));
  }
  heard_ = bell_.rings.load(std::memory_order_seq_cst);
}

// Reading the clock costs more than a look: it is read once the wait is no longer short, or before its first sleep.
double Waiter::idle_seconds() {
  if (!armed_ && looks_ < policy_.looks + 16) return 0;
  const double now = now_seconds();
  if (idle_since_ == 0) idle_since_ = now;
  return now - idle_since_;
}

void Waiter::disarm() {
  bell_.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  armed_ = hears_all_ = false;
}

}  // namespace stretto
