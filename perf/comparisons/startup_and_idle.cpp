// Measures the cost of ranks that do not communicate: the time until they can, the memory of a rank, and the processor time
// of ranks that wait. startup_and_idle.py runs this program and reads its lines.
#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "stretto/launch.hpp"

namespace {

using namespace stretto;

// Bytes of this process; a page shared by N processes counts 1/N.
double proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Bytes of the shared memory that this rank has made, touched or not: its anonymous file, which is opened before those of
// its peers.
double segment_bytes() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    struct stat status {};
    if (std::filesystem::read_symlink(entry, gone).string().rfind("/memfd:stretto", 0) == 0 &&
        stat(entry.path().c_str(), &status) == 0) {
      return static_cast<double>(status.st_blocks) * 512;
    }
  }
  return 0;
}

double mean_over_ranks(const Communicator& world, double value) {
  world.all_reduce(&value, &value, 1, DType::f64, ReduceOp::avg, Stream::inline_(), {.method = Algorithm::ring}).wait();
  return value;
}

void start(const Communicator& world) {
  world.barrier(Stream::inline_()).wait();
  if (world.rank() == 0) std::printf("%.6f\n", now_seconds());
}

// Prints the memory with the ring's peers first, since measuring itself uses a ring; the rest is the cost of further peers.
void memory(const Communicator& world) {
  const auto tell = [&] {
    const double proportional = mean_over_ranks(world, proportional_bytes());
    const double segment = mean_over_ranks(world, segment_bytes());
    if (world.rank() == 0) std::printf("%.0f %.0f\n", proportional, segment);
  };
  const std::int64_t share = 4096;
  std::vector<char> input(static_cast<std::size_t>(world.size() * share));
  std::vector<char> output(input.size());
  mean_over_ranks(world, 0);
  tell();
  world.all_to_all(input.data(), output.data(), share, DType::u8, Stream::inline_(), {.method = Algorithm::direct}).wait();
  tell();
}

// All ranks wait for rank 0, which sleeps; with "nothing" there is no operation to wait for.
void wait(const Communicator& world, const std::string& what, bool worker, double seconds) {
  const Stream stream = worker ? Stream("waiting") : Stream::inline_();
  const auto sleep = [&] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
  float value = 1;
  const auto operation = [&](int from_or_to) {
    if (what == "barrier") return world.barrier(stream);
    if (world.rank() == 0) return world.send(&value, 1, DType::f32, from_or_to, stream);
    return world.recv(&value, 1, DType::f32, 0, stream);
  };
  world.barrier(stream).wait();
  if (world.rank() == 0 || what == "nothing") {
    if (world.rank() == 0) std::puts("ready");
    std::fflush(stdout);
    sleep();
  }
  if (what == "nothing") return world.barrier(stream).wait();
  const int times = world.rank() == 0 && what == "receive" ? world.size() - 1 : 1;
  for (int i = 1; i <= times; ++i) operation(i).wait();
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 2;
  double seconds = 10;
  std::string what = "receive";
  std::string on = "inline";
  CLI::App app("Starts ranks that do not communicate");
  app.require_subcommand(1);
  app.add_option("--nproc", ranks);
  CLI::App* const starts = app.add_subcommand("start", "Prints the monotonic time at which the first barrier was over");
  CLI::App* const remembers = app.add_subcommand(
      "memory", "Prints bytes of a rank and of its shared memory with 2 peers, then with all ranks as peers");
  CLI::App* const waits = app.add_subcommand("wait", "Prints 'ready' and waits");
  waits->add_option("what", what)->check(CLI::IsMember({"receive", "barrier", "nothing"}));
  waits->add_option("stream", on)->check(CLI::IsMember({"inline", "worker"}));
  waits->add_option("--seconds", seconds);
  CLI11_PARSE(app, argc, argv);
  return launch(ranks, [&](const Communicator& world) {
    if (starts->parsed()) start(world);
    if (remembers->parsed()) memory(world);
    if (waits->parsed()) wait(world, what, on == "worker", seconds);
  });
}
