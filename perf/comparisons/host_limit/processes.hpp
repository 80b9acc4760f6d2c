// The processes of a measurement, which share memory without any library.
#pragma once
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace host_limit {

constexpr int most_ranks = 8;
constexpr std::int64_t line_bytes = 64;

inline int cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] inline void fail(const char* sentence) {
  std::fprintf(stderr, "error: %s\n", sentence);
  std::exit(1);
}

// Memory that all child processes share.
inline std::byte* shared_memory(std::int64_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("this machine has not enough memory; give fewer ranks or smaller sizes.");
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

// Runs body(rank) in that many processes; false if one of them failed.
template <class Body>
bool in_processes(int ranks, const Body& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    std::fflush(stdout);  // or the child might write it as well
    const pid_t child = fork();
    if (child < 0) fail("no process could be started; end some other processes.");
    if (child == 0) _exit(body(rank) ? 0 : 1);
    children.push_back(child);
  }
  bool right = true;
  for (const pid_t child : children) {
    int status = 0;
    right &= waitpid(child, &status, 0) == child && status == 0;
  }
  return right;
}

// Spins without a pause instruction, which alone would take as long as the exchange, and yields only if the wait is long.
template <class Condition>
void spin_until(const Condition& condition) {
  for (int spins = 0; !condition(); ++spins) {
    if (spins >= 100000) sched_yield();
  }
}

struct Shared {  // by the processes of one measurement
  alignas(line_bytes) std::atomic<int> arrived;
  double begins[most_ranks];
  double ends[most_ranks];

  // Runs body in each process at the same time.
  template <class Body>
  void timed(int rank, int ranks, const Body& body) {
    arrived.fetch_add(1);
    spin_until([&] { return arrived.load() >= ranks; });
    begins[rank] = now();
    body();
    ends[rank] = now();
  }
  // From the first beginning to the last end: ranks that share cores take turns.
  double seconds(int ranks) const {
    return *std::max_element(ends, ends + ranks) - *std::min_element(begins, begins + ranks);
  }
};

}  // namespace host_limit
