#include "perf/verbs.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "apps/common/parse_flags.hpp"
#include "common/fail.hpp"
#include "perf/measure.hpp"
#include "perf/stragglers/outliers.hpp"
#include "stretto/kernels.hpp"
#include "stretto/launch.hpp"
#include "stretto/stretto.hpp"

namespace perf {

using namespace stretto;

namespace {

// The best of many short rounds: on a busy machine, a round without an interruption.
constexpr int rounds = 20;
constexpr std::int64_t matrix = 384;
constexpr std::size_t copied = std::size_t{64} << 20;  // more than most caches hold
constexpr std::int64_t message = 1 << 20;

template <class Work>
double best_seconds(int times, const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < times; ++round) {
    const double from = now_seconds();
    work();
    best = std::min(best, now_seconds() - from);
  }
  return best;
}

double rate_of_products() {
  const Tensor a({matrix, matrix}, DType::f32);
  for (std::int64_t i = 0; i < a.size(); ++i) a.set(i, static_cast<double>(i % 7) - 3);
  const Tensor c({matrix, matrix}, DType::f32);
  const double seconds =
      best_seconds(rounds, [&] { kernels::gemm(a, kernels::Transpose::no, a, kernels::Transpose::yes, c); });
  return 2.0 * matrix * matrix * matrix / seconds;
}

double rate_of_memory() {
  const std::vector<char> from(copied, 1);
  std::vector<char> to(copied);
  return static_cast<double>(copied) / best_seconds(rounds, [&] { std::memcpy(to.data(), from.data(), copied); });
}

// In each round every rank has one partner at most (the circle method); all pairs of a round are measured at the same time.
int partner(int rank, int round, int ranks) {
  const int even = ranks + ranks % 2;
  const int circle = even - 1;
  if (rank == circle) {
    for (int other = 0; other < circle; ++other) {
      if (2 * other % circle == round) return other;
    }
  }
  const int other = (round - rank + circle) % circle;
  const int found = other == rank ? circle : other;
  return found < ranks ? found : rank;
}

void measure_links(const Communicator& world, RankRates& mine) {
  std::vector<char> out(message);
  std::vector<char> in(message);
  const auto exchange = [&](int peer, std::int64_t bytes) {
    world.send_recv(out.data(), bytes, peer, in.data(), bytes, peer, DType::u8, Stream::inline_()).wait();
  };
  mine.bandwidth.resize(static_cast<std::size_t>(world.size()));
  mine.latency.resize(static_cast<std::size_t>(world.size()));
  for (int round = 0; round < world.size() - 1 + world.size() % 2; ++round) {
    const int peer = partner(world.rank(), round, world.size());
    world.barrier(Stream::inline_()).wait();
    if (peer == world.rank()) continue;
    mine.latency[static_cast<std::size_t>(peer)] = best_seconds(10 * rounds, [&] { exchange(peer, 8); });
    mine.bandwidth[static_cast<std::size_t>(peer)] =
        static_cast<double>(message) / best_seconds(rounds, [&] { exchange(peer, message); });
  }
}

// Collective: returns every rank's rates, on all ranks.
std::vector<RankRates> on_all_ranks(const Communicator& world, const RankRates& mine) {
  std::vector<double> numbers{mine.products, mine.memory};
  numbers.insert(numbers.end(), mine.bandwidth.begin(), mine.bandwidth.end());
  numbers.insert(numbers.end(), mine.latency.begin(), mine.latency.end());
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<double> all(numbers.size() * ranks);
  world.all_gather(numbers.data(), all.data(), static_cast<std::int64_t>(numbers.size()), DType::f64, Stream::inline_())
      .wait();
  const std::vector<std::string> hosts = to_rank0(world, mine.host);
  std::vector<RankRates> result(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(rank * numbers.size());
    const auto part = [&](std::size_t which) {
      const auto from = at + 2 + static_cast<std::ptrdiff_t>(which * ranks);
      return std::vector<double>(from, from + world.size());
    };
    result[rank] = {hosts.empty() ? "" : hosts[rank], world.nodes()[rank], at[0], at[1], part(0), part(1)};
  }
  return result;
}

// The slowest of the links to the other ranks.
double worst(const std::vector<double>& values, std::size_t rank, bool largest) {
  double result = 0;
  bool any = false;
  for (std::size_t other = 0; other < values.size(); ++other) {
    if (other == rank) continue;
    result = !any ? values[other] : largest ? std::max(result, values[other]) : std::min(result, values[other]);
    any = true;
  }
  return result;
}

void measure(const Communicator& world, double threshold) {
  RankRates mine;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  mine.host = host.data();
  world.barrier(Stream::inline_()).wait();
  mine.products = rate_of_products();
  world.barrier(Stream::inline_()).wait();
  mine.memory = rate_of_memory();
  measure_links(world, mine);
  const std::vector<RankRates> ranks = on_all_ranks(world, mine);
  if (world.rank() != 0) return;
  fmt::print("# rank  products GFLOP/s  copies GB/s  slowest link GB/s  slowest link us  host\n");
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    fmt::print("{:>6}{:>18.1f}{:>13.2f}{:>19.2f}{:>17.2f}  {}\n", rank, ranks[rank].products * 1e-9,
               ranks[rank].memory * 1e-9, worst(ranks[rank].bandwidth, rank, false) * 1e-9,
               worst(ranks[rank].latency, rank, true) * 1e6, ranks[rank].host);
  }
  const std::vector<std::string> slow = outliers(ranks, threshold);
  for (const std::string& sentence : slow) fmt::print("{}\n", sentence);
  std::fflush(stdout);
  if (slow.empty())
    return fmt::print("No rank and no link is slower than the median by more than {:.0f}%.\n", threshold * 100);
  fail(ErrorCode::unavailable, "{} of ranks and links are slower than the median by more than {:.0f}%; see above.",
       slow.size(), threshold * 100);
}

}  // namespace

int find_stragglers(int argc, char** argv) {
  int nproc = 0;
  double threshold = 0.25;
  CLI::App app("Measures the cores, the memory and the links of all ranks before a job, and names the outliers.",
               "stretto-perf stragglers");
  app.set_help_flag("-h,--help", "Print this help");
  app.add_option("--nproc", nproc, "Ranks to start on this host (leave it out under a launcher)");
  app.add_option("--threshold", threshold, "Share by which a rank or link may be slower than the median")
      ->capture_default_str();
  if (!apps::parse_flags(app, argc, argv)) return 0;
  require(threshold > 0 && threshold < 1, "--threshold {} is no share; give one like 0.25.", threshold);
  require(nproc >= 0, "--nproc {} cannot be negative.", nproc);
  return launch(nproc, [&](const Communicator& world) { measure(world, threshold); });
}

}  // namespace perf
