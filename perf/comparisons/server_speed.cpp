// Measures pushes and pulls of a table between workers and servers: each worker pushes its values and pulls the sum of all;
// or rows of a sparse table. servers.py runs this program and reads its lines: bytes or keys, and medians of the slowest
// worker's times.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "apps/common/median.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"

namespace {

using namespace stretto;

using apps::median;

// A copy of as many bytes, out of the caches as far as they are larger.
double copy_seconds(std::int64_t bytes) {
  std::vector<char> from(static_cast<std::size_t>(bytes), 1), to(from.size());
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const double begin = now_seconds();
    std::memcpy(to.data(), from.data(), from.size());
    asm volatile("" : : "r"(to.data()) : "memory");
    times.push_back(now_seconds() - begin);
  }
  return median(times);
}

// The ranks with the workers before the servers: the first rank of each of the first `worker_hosts` hosts, or if that is 0
// all but the last `servers` ranks.
Communicator workers_first(const Communicator& world, int worker_hosts, int& servers) {
  if (worker_hosts == 0) return world;
  const std::vector<int>& hosts = world.nodes();
  const auto is_worker = [&](int rank) {
    const int host = hosts[static_cast<std::size_t>(rank)];
    return host < worker_hosts && (rank == 0 || hosts[static_cast<std::size_t>(rank - 1)] != host);
  };
  servers = world.size() - worker_hosts;
  return world.split(0, is_worker(world.rank()) ? 0 : 1, "workers first");
}

// All ranks get the largest of the workers' medians; servers have measured nothing.
double slowest_median(const Communicator& world, std::vector<double> times) {
  double slowest = times.empty() ? 0 : median(std::move(times));
  world.all_reduce(&slowest, &slowest, 1, DType::f64, ReduceOp::max, Stream::inline_()).wait();
  return slowest;
}

// parts: of each server; servers have equally many.
void measure(const Communicator& world, int servers, std::int64_t bytes, std::int64_t parts, int rounds) {
  const std::int64_t elements = bytes / 4, all = parts * servers;
  const std::int64_t part = std::max<std::int64_t>((elements + all - 1) / all, 1024);
  ServerSet set(world, {{"table", elements, DType::f32, {}, server_functions::assign()}},
                {.servers = servers, .points = 256, .part_elements = part});
  std::vector<double> times;
  if (set.is_server()) {
    set.serve();
  } else {
    const Tensor pushed = Tensor::zeros({elements}, DType::f32), pulled({elements}, DType::f32);
    for (int i = 0; i < rounds + 2; ++i) {
      const double begin = now_seconds();
      set.wait(set.push_pull(0, pushed, pulled));
      if (i >= 2) times.push_back(now_seconds() - begin);
    }
    set.leave();
  }
  const double slowest = slowest_median(world, std::move(times));
  if (world.rank() == 0) {
    std::printf("{\"bytes\": %lld, \"seconds\": %.9f, \"copy_s\": %.9f}\n", static_cast<long long>(bytes), slowest,
                copy_seconds(bytes));
    std::fflush(stdout);
  }
}

std::vector<std::uint64_t> random_keys(std::int64_t count) {
  std::mt19937_64 draw(1);
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(count));
  std::generate(keys.begin(), keys.end(), std::ref(draw));
  std::sort(keys.begin(), keys.end());  // 64 random bits: with this seed no key comes twice, which push() would refuse
  return keys;
}

// All workers push the same keys in each round, and pull them.
void measure_keys(const Communicator& world, int servers, std::int64_t count, bool key_cache, int rounds) {
  ServerSet set(world, {{.name = "rows", .update = server_functions::sum(), .width = 1, .key_cache = key_cache}},
                {.servers = servers});
  std::vector<double> pushes, pulls;
  if (set.is_server()) {
    set.serve([](const ServerSet::Question&) { return std::string(); });
  } else {
    const std::vector<std::uint64_t> keys = random_keys(count);
    const Tensor pushed = Tensor::zeros({count, 1}, DType::f32), pulled({count, 1}, DType::f32);
    for (int i = 0; i < rounds + 2; ++i) {
      const double begin = now_seconds();
      set.wait(set.push(0, keys, pushed));
      set.ask("");  // a push is done when it has left, and the answer comes when the servers have it
      const double between = now_seconds();
      set.wait(set.pull(0, keys, pulled));
      if (i < 2) continue;
      pushes.push_back(between - begin);
      pulls.push_back(now_seconds() - between);
    }
    set.leave();
  }
  const double push = slowest_median(world, std::move(pushes)), pull = slowest_median(world, std::move(pulls));
  if (world.rank() == 0) {
    std::printf("{\"keys\": %lld, \"key_cache\": %s, \"push_s\": %.9f, \"pull_s\": %.9f}\n", static_cast<long long>(count),
                key_cache ? "true" : "false", push, pull);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): CLI11's, of flags that are wrong here
  int ranks = 3, servers = 1, worker_hosts = 0, rounds = 100;
  std::int64_t parts = 1, keys = 0;
  std::vector<std::int64_t> sizes = {16 << 20};
  CLI::App app("Times pushes and pulls of a table");
  app.add_option("--nproc", ranks, "Ranks to start; 0: those of a launcher");
  app.add_option("--servers", servers, "The last ranks");
  app.add_option("--worker-hosts", worker_hosts,
                 "Workers are the first rank of each of so many hosts, and servers all others; 0: see --servers");
  app.add_option("--parts", parts, "Of the table, at each server")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "Timed rounds of each size")->check(CLI::PositiveNumber);
  app.add_option("--bytes", sizes, "Sizes of the table")->check(CLI::PositiveNumber);
  app.add_option("--keys", keys, "Instead, rows of so many keys of a sparse table, without a key cache and with one")
      ->check(CLI::PositiveNumber)
      ->excludes("--bytes", "--parts");
  CLI11_PARSE(app, argc, argv);
  return launch(ranks, [&](const Communicator& world) {
    const Communicator all = workers_first(world, worker_hosts, servers);
    if (keys > 0) {
      for (const bool key_cache : {false, true}) measure_keys(all, servers, keys, key_cache, rounds);
    } else {
      for (const std::int64_t bytes : sizes) measure(all, servers, bytes, parts, rounds);
    }
  });
}
