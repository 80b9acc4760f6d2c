// host_limit RANKS exchange, or host_limit RANKS COLLECTIVE BYTES...: the limits of collectives on one host without any
// library, as a JSON object.
//   exchange_us  The processes add 8 bytes of each other's. Each writes its own bytes and a sequence number into a cache
//                line, and waits for the lines of the others: without leaving its core if each process has one, else it
//                yields at every look. No all-reduce of 8 bytes can be shorter.
//   clock_us     A read of the clock, beside exchange_us. A library that records its calls reads it twice in each.
//   loops        The processes do the work of all_reduce, all_gather or all_to_all over shared memory, without
//                synchronisation: of an all-reduce, each reads its share of every rank's input once and writes the sum into
//                every rank's output once; of the others, each copies what is for it from every rank's input. Microseconds
//                for each size, the most bytes that a rank has in one buffer, by the fastest of several kinds of stores.
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <cstring>
#include <limits>
#include <new>
#include <string>

#include "processes.hpp"
#include "sums.hpp"

namespace host_limit {
namespace {

// 0 + 1 + ... + (ranks - 1)
std::int64_t sum_of_numbers(int ranks) { return std::int64_t{ranks} * (ranks - 1) / 2; }

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
        all_right &= sums[0] == static_cast<float>(ranks * (round % 1024) + sum_of_numbers(ranks)) && sums[1] == -sums[0];
      }
    });
    return all_right;
  });
  if (!right) fail("the exchange of a line gave a wrong sum; this machine does not keep the order of stores.");
  const double seconds = exchange->shared.seconds(ranks) / rounds;
  munmap(exchange, sizeof(CacheLineExchange));
  return seconds;
}

float input_of(int rank, std::int64_t i) { return static_cast<float>(i % 1024 + rank); }

struct Buffers {
  std::byte* memory;
  int ranks;
  std::int64_t bytes;

  // Buffers at distances of a power of two would evict each other from the caches.
  std::int64_t stride() const { return bytes + 17 * 256; }
  std::int64_t count() const { return bytes / static_cast<std::int64_t>(sizeof(float)); }
  std::int64_t all_bytes() const { return 2 * ranks * stride(); }
  float* input(int rank) const { return reinterpret_cast<float*>(memory + rank * stride()); }
  float* output(int rank) const { return reinterpret_cast<float*>(memory + (ranks + rank) * stride()); }
};

// A collective: the sums and copies that a rank does, and the result at a place of a rank's output.
struct AllReduce {
  static std::vector<Sum> work(const Buffers& buffers, int rank) {
    const std::int64_t lines = buffers.bytes / line_bytes;
    const std::int64_t first = lines * rank / buffers.ranks * line_floats;
    Sum share{};
    share.count = lines * (rank + 1) / buffers.ranks * line_floats - first;
    for (int other = 0; other < buffers.ranks; ++other) {
      share.inputs[other] = buffers.input(other) + first;
      share.outputs[other] = buffers.output(other) + first;
    }
    return {share};
  }
  static float result(const Buffers& buffers, int, std::int64_t i) {
    return static_cast<float>(buffers.ranks * (i % 1024) + sum_of_numbers(buffers.ranks));
  }
};

// to_each: of an all_to_all, in which rank r gets the r-th part of every input. Of an all_gather it gets the same first part
// of each.
template <bool to_each>
struct Copies {
  static std::vector<Sum> work(const Buffers& buffers, int rank) {
    const std::int64_t part = buffers.count() / buffers.ranks;
    std::vector<Sum> copies;
    for (int i = 1; i <= buffers.ranks; ++i) {
      const int other = (rank + i) % buffers.ranks;
      Sum& copy = copies.emplace_back();
      copy.count = part;
      copy.inputs[0] = buffers.input(other) + (to_each ? rank * part : 0);
      copy.outputs[0] = buffers.output(rank) + other * part;
    }
    return copies;
  }
  static float result(const Buffers& buffers, int rank, std::int64_t i) {
    const std::int64_t part = buffers.count() / buffers.ranks;
    return input_of(static_cast<int>(i / part), i % part + (to_each ? rank * part : 0));
  }
};

// Seconds of an iteration of all processes.
template <class Collective>
double loop_seconds(int ranks, std::int64_t bytes, Loop loop) {
  const int iterations = static_cast<int>(std::clamp<std::int64_t>((std::int64_t{512} << 20) / (bytes * ranks), 3, 2000));
  auto* const shared = new (shared_memory(sizeof(Shared))) Shared{};
  Buffers buffers{nullptr, ranks, bytes};
  buffers.memory = shared_memory(buffers.all_bytes());
  bool right = in_processes(ranks, [&](int rank) {
    for (std::int64_t i = 0; i < buffers.count(); ++i) {  // each rank is the first to touch its buffers
      buffers.input(rank)[i] = input_of(rank, i);
      buffers.output(rank)[i] = -1;
    }
    const std::vector<Sum> work = Collective::work(buffers, rank);
    const auto iterate = [&] {
      for (const Sum& each : work) loop(each);
    };
    iterate();
    shared->timed(rank, ranks, [&] {
      for (int i = 0; i < iterations; ++i) iterate();
    });
    return true;
  });
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < buffers.count(); ++i) {
      right &= buffers.output(rank)[i] == Collective::result(buffers, rank, i);
    }
  }
  if (!right) fail("the loop over shared memory gave wrong values or was killed; give it more memory.");
  const double seconds = shared->seconds(ranks) / iterations;
  munmap(buffers.memory, buffers.all_bytes());
  munmap(shared, sizeof(Shared));
  return seconds;
}

template <class Collective>
void print_loops(int ranks, const std::vector<std::int64_t>& sizes, int inputs) {
  std::printf("{\"loops\": {");
  for (const std::int64_t bytes : sizes) {
    double best = std::numeric_limits<double>::infinity();
    for (const Loop loop : loops_for(inputs)) best = std::min(best, loop_seconds<Collective>(ranks, bytes, loop));
    std::printf("%s\"%lld\": %.3f", bytes == sizes.front() ? "" : ", ", static_cast<long long>(bytes), best * 1e6);
  }
  std::printf("}}\n");
}

double clock_seconds() {
  using std::chrono::steady_clock;
  constexpr int reads = 1000000;
  std::uint64_t sum = 0;
  const auto begin = steady_clock::now();
  for (int i = 0; i < reads; ++i) {
#if defined(__x86_64__)
    sum += __rdtsc();
#else
    sum += static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count());
#endif
  }
  const double seconds = std::chrono::duration<double>(steady_clock::now() - begin).count() / reads;
  return sum == 0 ? 0 : seconds;  // which needs the sum
}

void print_exchange(int ranks) {
  const int rounds = static_cast<int>(std::clamp(0.05 / exchange_seconds(ranks, 2000), 2000.0, 300000.0));
  double seconds[3] = {};
  for (double& each : seconds) each = exchange_seconds(ranks, rounds);
  std::sort(seconds, seconds + 3);
  std::printf("{\"exchange_us\": %.4f, \"clock_us\": %.4f}\n", seconds[1] * 1e6, clock_seconds() * 1e6);
}

}  // namespace
}  // namespace host_limit

int main(int argc, char** argv) {
  using namespace host_limit;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string what = argc > 2 ? argv[2] : "";
  if (ranks != 2 && ranks != 4 && ranks != 8) fail("host_limit RANKS WHAT [BYTES...] takes 2, 4 or 8 ranks.");
  std::vector<std::int64_t> sizes;
  for (int i = 3; i < argc; ++i) {
    sizes.push_back(std::atoll(argv[i]));
    if (sizes.back() < line_bytes * ranks || sizes.back() % (line_bytes * ranks) != 0) {
      fail("a size must be a multiple of 64 bytes for each rank.");
    }
  }
  if (what == "exchange" && sizes.empty()) {
    print_exchange(ranks);
  } else if (what == "all_reduce") {
    print_loops<AllReduce>(ranks, sizes, ranks);
  } else if (what == "all_gather") {
    print_loops<Copies<false>>(ranks, sizes, 1);
  } else if (what == "all_to_all") {
    print_loops<Copies<true>>(ranks, sizes, 1);
  } else {
    fail("host_limit measures exchange, without sizes, or all_reduce, all_gather or all_to_all of some sizes.");
  }
}
