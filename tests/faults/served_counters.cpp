// Workers count their pushes at parameter servers, for tests that kill or stop ranks meanwhile, or cut them off:
//   served_counters WORKERS SERVERS COPIES SPARES CONSISTENCY PUSHES [launched]
// With "launched" the process is one rank of a job that a launcher started.
// Each worker that is left has an exact count at the end, and says so. Spares join one after the other.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"

namespace {

using namespace stretto;

constexpr std::int64_t counters = 50;  // of each worker, in each table

constexpr std::chrono::milliseconds between_pushes{5};

struct Counting {
  int workers = 0, pushes = 0;
  ServerSet::Options servers = {};
};

void expect(bool holds, const std::string& sentence) {
  if (!holds) throw Error(ErrorCode::internal, sentence);
}

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// Descriptors some pushes behind each loss, since what a loss brings along comes with the first messages.
class Descriptors {
 public:
  void look(int ranks, int push) {
    if (ranks != ranks_) {
      ranks_ = ranks;
      due_ = push + 20;
    }
    if (push == due_) found_.push_back(descriptors());
  }
  // The first job's stay until it ends, so that the number behind the first loss is the one to compare with.
  void require_no_growth() const {
    if (found_.size() < 3) return;
    expect(found_.back() <= found_[1], "There were " + std::to_string(found_[1]) +
                                           " descriptors behind the first loss, and " + std::to_string(found_.back()) +
                                           " behind the last.");
  }

 private:
  int ranks_ = 0, due_ = -1;
  std::vector<std::ptrdiff_t> found_;
};

// Whether all are `all`; throws if one is out of bounds.
bool are_all(const Tensor& counts, std::int64_t first, std::int64_t least, std::int64_t all) {
  const auto* const begin = counts.data<std::int64_t>() + first;
  const auto [fewest, most] = std::minmax_element(begin, begin + counters);
  expect(*fewest >= least && *most <= all, std::to_string(*fewest) + " to " + std::to_string(*most) +
                                               " pushes are counted, of " + std::to_string(least) + " to " +
                                               std::to_string(all) + ".");
  return *fewest == all;
}

void work(ServerSet& set, int worker, const Counting& counting) {
  const std::int64_t elements = counters * counting.workers, own = counters * worker;
  const Tensor ones = Tensor::zeros({elements}, DType::i64), found({elements}, DType::i64);
  const Tensor row_ones({counters, 1}, DType::i64), rows({counters, 1}, DType::i64);
  std::fill_n(ones.data<std::int64_t>() + own, counters, 1);
  std::fill_n(row_ones.data<std::int64_t>(), counters, 1);
  std::vector<std::uint64_t> keys;
  for (std::int64_t i = 0; i < counters; ++i) keys.push_back(static_cast<std::uint64_t>(own + i) << 40);
  const bool is_eventual = counting.servers.consistency.kind == Consistency::Kind::eventual;
  const int delay = is_eventual ? 0 : counting.servers.consistency.delay;
  Descriptors use;
  set.attend();
  for (int push = 0; push < counting.pushes; ++push) {
    set.wait(set.pull(0, found));
    are_all(found, own, push - delay, counting.pushes);
    set.wait(set.push(1, keys, row_ones));
    set.wait(set.push(0, ones));
    use.look(set.ranks().size(), push);
    std::this_thread::sleep_for(between_pushes);
  }
  const std::int64_t least = counting.pushes - delay;
  do set.wait(set.pull(0, found));
  while (!are_all(found, own, least, counting.pushes));
  do set.wait(set.pull(1, keys, rows));
  while (!are_all(rows, 0, least, counting.pushes));
  use.require_no_growth();
  set.leave();
  std::printf("worker %d has counted %d pushes\n", worker, counting.pushes);
  std::fflush(stdout);
}

void run(const Communicator& world, const Counting& counting) {
  const ServerFunction sum = server_functions::sum();
  ServerSet set(world,
                {{"dense", counters * counting.workers, DType::i64, {}, sum},
                 {.name = "sparse", .dtype = DType::i64, .update = sum, .width = 1}},
                counting.servers);
  if (!set.is_server()) return work(set, world.rank(), counting);
  const int spare = world.rank() - (world.size() - counting.servers.spares);
  if (spare >= 0) {
    std::this_thread::sleep_for(std::chrono::seconds(1 + spare));
    set.join();
  }
  set.serve();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Consistency> consistencies{{"sequential", Consistency::sequential()},
                                                         {"bounded", Consistency::bounded(2)},
                                                         {"eventual", Consistency::eventual()}};
  const bool is_launched = argc == 8 && std::string(argv[7]) == "launched";
  if (argc != (is_launched ? 8 : 7) || consistencies.count(argv[5]) == 0) return 2;
  const Counting counting{.workers = std::atoi(argv[1]),
                          .pushes = std::atoi(argv[6]),
                          .servers = {.servers = std::atoi(argv[2]),
                                      .consistency = consistencies.at(argv[5]),
                                      .part_elements = 10,
                                      .copies = std::atoi(argv[3]),
                                      .spares = std::atoi(argv[4])}};
  const int ranks = is_launched ? 0 : counting.workers + counting.servers.servers;
  LaunchOptions options;
  options.survivors_go_on = counting.servers.copies > 0;
  return launch(
      ranks, [&](const Communicator& world) { run(world, counting); }, options);
}
