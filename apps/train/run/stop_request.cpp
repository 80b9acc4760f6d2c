#include "apps/train/run/stop_request.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <new>

#include "apps/common/fail.hpp"

namespace apps {

using namespace stretto;

namespace {

constexpr double seconds_to_repeat = 1;

struct SharedRequest {
  std::atomic<int> asked = 0, agreed = 0, layouts = 0;
  std::atomic<double> layout_asked_at = 0;
  std::atomic<bool> ranks_look = false;
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
              std::atomic<double>::is_always_lock_free);  // for the handler

SharedRequest* shared = nullptr;
std::atomic<double> first_signal_at = 0;  // of this process

double monotonic_seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void on_signal(int number) {
  double first = 0;
  const double now = monotonic_seconds();
  const bool repeats = !first_signal_at.compare_exchange_strong(first, now) && now - first > seconds_to_repeat;
  if (repeats || !shared->ranks_look) _exit(128 + number);
  int none = 0;
  shared->asked.compare_exchange_strong(none, number);
}

void on_layout_signal(int) {
  const double now = monotonic_seconds();
  double last = shared->layout_asked_at;
  if (now - last > seconds_to_repeat && shared->layout_asked_at.compare_exchange_strong(last, now)) ++shared->layouts;
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(number, &action, nullptr);
}

// The largest of the ranks' values.
std::int64_t most_of(const Communicator& ranks, std::int64_t value, const char* tag) {
  if (ranks.size() > 1) {
    ranks.all_reduce(&value, &value, 1, DType::i64, ReduceOp::max, Stream::inline_(), {.tag = tag}).wait();
  }
  return value;
}

}  // namespace

StopRequest::StopRequest() {
  void* const memory = mmap(nullptr, sizeof(SharedRequest), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail(ErrorCode::unavailable, "Cannot share a page of memory between ranks: {}.", std::strerror(errno));
  }
  shared = new (memory) SharedRequest;
}

void StopRequest::take_signals(bool ranks_look) {
  shared->ranks_look = ranks_look;
  for (const int number : {SIGTERM, SIGINT}) handle(number, on_signal);
}

int StopRequest::agree(const Communicator& ranks) {
  const auto signal = static_cast<int>(most_of(ranks, shared->asked, "whether to stop"));
  if (signal != 0) shared->agreed = signal;
  return signal;
}

void StopRequest::take_layout_signals() { handle(SIGUSR2, on_layout_signal); }

std::int64_t StopRequest::agree_on_layouts(const Communicator& ranks) {
  const std::int64_t most = most_of(ranks, shared->layouts, "whether to change the layout");
  // Each host counts its own signals; the next one, to whichever host, is one more than all have seen.
  for (int mine = shared->layouts; mine < most && !shared->layouts.compare_exchange_weak(mine, static_cast<int>(most));)
    continue;
  return most;
}

int StopRequest::asked() const { return shared->asked; }

int StopRequest::agreed() const { return shared->agreed; }

}  // namespace apps
