// host_limit RANKS [BYTES...] measures the limits of collectives on one host without any library, as one JSON object.
//   exchange_us  The processes add 8 bytes of each other's. Each writes its own bytes and a sequence number into a cache
//   line, and
//                waits for the lines of the others: without leaving its core if each process has one, else it yields at
//                every look. No all-reduce of 8 bytes can be shorter.
//   loops        The processes of an all-reduce each read their share of every rank's input once and write the sum into
//   every
//                rank's output once, over shared memory and without synchronisation. Microseconds for each size, by the
//                faster of ordinary stores and of stores that bypass the caches.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

constexpr int most_ranks = 8;
constexpr std::int64_t line_bytes = 64;
constexpr int line_floats = line_bytes / sizeof(float);

int cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void fail(const char* sentence) {
  std::fprintf(stderr, "error: %s\n", sentence);
  std::exit(1);
}

// Memory that all child processes share.
std::byte* shared_memory(std::int64_t bytes) {
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

// ---- the exchange of a line

struct alignas(line_bytes) Line {
  std::atomic<std::uint64_t> sequence;
  float values[2];
};
struct CacheLineExchange {
  Shared shared;
  Line lines[most_ranks]
            [2];  // of each rank, for even and odd rounds: a line is written again only after all others have read it
};

double exchange_seconds(int ranks, int rounds) {
  auto* const exchange = new (shared_memory(sizeof(CacheLineExchange))) CacheLineExchange{};
  const bool crowded = ranks > cores();
  const bool right = in_processes(ranks, [&](int rank) {
    bool all_right = true;
    exchange->shared.timed(rank, ranks, [&] {
      for (std::uint64_t round = 1; round <= static_cast<std::uint64_t>(rounds); ++round) {
        Line& mine = exchange->lines[rank][round % 2];
        const float own = static_cast<float>(round % 1024 + rank);
        float sums[2] = {own, -own};
        std::memcpy(mine.values, sums, sizeof sums);
        mine.sequence.store(round, std::memory_order_release);
        for (int other = 0; other < ranks; ++other) {
          if (other == rank) continue;
          const Line& others = exchange->lines[other][round % 2];
          const auto is_there = [&] { return others.sequence.load(std::memory_order_acquire) >= round; };
          while (crowded && !is_there()) sched_yield();
          spin_until(is_there);
          sums[0] += others.values[0];
          sums[1] += others.values[1];
        }
        all_right &= sums[0] == static_cast<float>(ranks * (round % 1024) + ranks * (ranks - 1) / 2) && sums[1] == -sums[0];
      }
    });
    return all_right;
  });
  if (!right) fail("the exchange of a line gave a wrong sum; this machine does not keep the order of stores.");
  const double seconds = exchange->shared.seconds(ranks) / rounds;
  munmap(exchange, sizeof(CacheLineExchange));
  return seconds;
}

// ---- the loop

struct Share {  // of one process: its inputs, outputs and number of elements
  const float* inputs[most_ranks];
  float* outputs[most_ranks];
  std::int64_t count;  // whole lines
};

template <int ranks>
void add_ordinary(const Share& share) {
  for (std::int64_t i = 0; i < share.count; i += line_floats) {
    float sum[line_floats];
    std::memcpy(sum, share.inputs[0] + i, sizeof sum);
    for (int rank = 1; rank < ranks; ++rank) {
      for (int lane = 0; lane < line_floats; ++lane) sum[lane] += share.inputs[rank][i + lane];
    }
    for (int rank = 0; rank < ranks; ++rank) std::memcpy(share.outputs[rank] + i, sum, sizeof sum);
  }
}

#ifdef __x86_64__
template <int ranks>
__attribute__((target("avx512f"))) void add_ordinary_512(const Share& share) {
  for (std::int64_t i = 0; i < share.count; i += line_floats) {
    __m512 sum = _mm512_loadu_ps(share.inputs[0] + i);
    for (int rank = 1; rank < ranks; ++rank) sum = _mm512_add_ps(sum, _mm512_loadu_ps(share.inputs[rank] + i));
    for (int rank = 0; rank < ranks; ++rank) _mm512_storeu_ps(share.outputs[rank] + i, sum);
  }
}

template <int ranks>
__attribute__((target("avx512f"))) void add_around_512(const Share& share) {
  for (std::int64_t i = 0; i < share.count; i += line_floats) {
    __m512 sum = _mm512_loadu_ps(share.inputs[0] + i);
    for (int rank = 1; rank < ranks; ++rank) sum = _mm512_add_ps(sum, _mm512_loadu_ps(share.inputs[rank] + i));
    for (int rank = 0; rank < ranks; ++rank) _mm512_stream_ps(share.outputs[rank] + i, sum);
  }
  _mm_sfence();
}

template <int ranks>
void add_around(const Share& share) {
  for (std::int64_t i = 0; i < share.count; i += line_floats) {
    __m128 sum[4];
    for (int part = 0; part < 4; ++part) {
      sum[part] = _mm_loadu_ps(share.inputs[0] + i + 4 * part);
      for (int rank = 1; rank < ranks; ++rank) {
        sum[part] = _mm_add_ps(sum[part], _mm_loadu_ps(share.inputs[rank] + i + 4 * part));
      }
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (int part = 0; part < 4; ++part) _mm_stream_ps(share.outputs[rank] + i + 4 * part, sum[part]);
    }
  }
  _mm_sfence();
}
#endif

using Loop = void (*)(const Share&);
template <int ranks>
std::vector<Loop> loops_of() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {add_ordinary_512<ranks>, add_around_512<ranks>};
  return {add_ordinary<ranks>, add_around<ranks>};
#else
  return {add_ordinary<ranks>};
#endif
}
std::vector<Loop> loops_for(int ranks) {
  if (ranks == 2) return loops_of<2>();
  if (ranks == 4) return loops_of<4>();
  return loops_of<8>();
}

// Seconds of an iteration of all processes.
double loop_seconds(int ranks, std::int64_t bytes, Loop loop) {
  const int iterations = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{512} << 20) / (bytes * ranks), 3, 2000));
  auto* const shared = new (shared_memory(sizeof(Shared))) Shared{};
  // Buffers at distances of a power of two would evict each other from the caches.
  const std::int64_t stride = bytes + 17 * 256;
  std::byte* const memory = shared_memory(2 * ranks * stride);
  const auto buffer = [&](int number) { return reinterpret_cast<float*>(memory + number * stride); };
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(float));
  const bool right = in_processes(ranks, [&](int rank) {
    for (std::int64_t i = 0; i < count; ++i) {  // each rank is the first to touch its buffers
      buffer(rank)[i] = static_cast<float>(i % 1024 + rank);
      buffer(ranks + rank)[i] = -1;
    }
    const std::int64_t lines = bytes / line_bytes;
    const std::int64_t first = lines * rank / ranks * line_floats;
    Share share{};
    share.count = lines * (rank + 1) / ranks * line_floats - first;
    for (int other = 0; other < ranks; ++other) {
      share.inputs[other] = buffer(other) + first;
      share.outputs[other] = buffer(ranks + other) + first;
    }
    loop(share);
    shared->timed(rank, ranks, [&] {
      for (int i = 0; i < iterations; ++i) loop(share);
    });
    const int sum_of_ranks = ranks * (ranks - 1) / 2;
    bool all_right = true;
    for (std::int64_t i = first; i < first + share.count; ++i) {
      const auto sum = static_cast<float>(ranks * (i % 1024) + sum_of_ranks);
      for (int other = 0; other < ranks; ++other) all_right &= buffer(ranks + other)[i] == sum;
    }
    return all_right;
  });
  if (!right) fail("the loop over shared memory gave wrong sums or was killed; give it more memory.");
  const double seconds = shared->seconds(ranks) / iterations;
  munmap(memory, 2 * ranks * stride);
  munmap(shared, sizeof(Shared));
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  if (ranks != 2 && ranks != 4 && ranks != 8) fail("host_limit RANKS [BYTES...] takes 2, 4 or 8 ranks.");
  std::vector<std::int64_t> sizes;
  for (int i = 2; i < argc; ++i) {
    sizes.push_back(std::atoll(argv[i]));
    if (sizes.back() < line_bytes * ranks || sizes.back() % line_bytes != 0) {
      fail("a size must be a multiple of 64 bytes, with at least 64 bytes for each rank.");
    }
  }
  std::printf("{\"ranks\": %d", ranks);
  const int rounds = static_cast<int>(std::clamp(0.05 / exchange_seconds(ranks, 2000), 2000.0, 300000.0));
  double seconds[3] = {};
  for (double& each : seconds) each = exchange_seconds(ranks, rounds);
  std::sort(seconds, seconds + 3);
  std::printf(", \"exchange_us\": %.4f", seconds[1] * 1e6);
  std::printf(", \"loops\": {");
  for (const std::int64_t bytes : sizes) {
    double best = std::numeric_limits<double>::infinity();
    for (const Loop loop : loops_for(ranks)) best = std::min(best, loop_seconds(ranks, bytes, loop));
    std::printf("%s\"%lld\": %.3f", bytes == sizes.front() ? "" : ", ", static_cast<long long>(bytes), best * 1e6);
  }
  std::printf("}}\n");
}
