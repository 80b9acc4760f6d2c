// Attention over one long sequence whose tokens lie on several ranks, forward and backward, as one JSON line: how long it
// takes beside attention of one rank, or how much of its communication is hidden (stretto/overlap/rehearsal.hpp).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../gpu/gpu_data.hpp"
#include "apps/common/exit_status.hpp"
#include "stretto/device.hpp"
#include "stretto/launch.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/overlap/rehearsal.hpp"

namespace {

using namespace stretto;

struct Options {
  int nproc = 2;
  std::vector<std::string> passes = {"forward", "backward"};
  std::vector<std::string> cores = {"local", "zigzag", "contiguous", "striped", "ulysses"};
  AttentionCore::Shape shape{.batch = 1, .rows = 8192, .heads = 8, .kv_heads = 8, .head_size = 64};  // of the whole sequence
  int rounds = 5;
  int steps = 1;
  bool overlap = true;
};

// A core by its name, with its inputs: attention of this rank's share of the sequence or, of "local", of all of it on every
// rank at once.
class Attention {
 public:
  Attention(const Communicator& world, const std::string& name, const Options& options)
      : core_(core_of(world, name, options.overlap)), shape_(options.shape) {
    if (name != "local") shape_.rows /= world.size();
    const std::int64_t rows = shape_.batch * shape_.rows, width = shape_.heads * shape_.head_size;
    qkv_ = perf::random({rows, 3 * width}, DType::f32);
    dqkv_ = Tensor(qkv_.shape(), DType::f32);
    dattended_ = perf::random({rows, width}, DType::f32);
    forward();
  }
  void forward() { core_->forward(shape_, packed_heads(shape_, qkv_), saved_); }
  void backward() { core_->backward(dattended_, saved_, packed_heads(shape_, dqkv_)); }

 private:
  static std::shared_ptr<const AttentionCore> core_of(const Communicator& world, const std::string& name, bool overlap) {
    if (name == "local") return std::make_shared<LocalAttention>();
    if (name == "ulysses") {
      return std::make_shared<UlyssesAttention>(world, std::make_shared<LocalAttention>(),
                                                overlap ? Stream("ulysses") : computation());
    }
    const SequenceDivision division{.ring = world.size(), .layout = sequence_layout_from_name(name)};
    return std::make_shared<RingAttention>(world, division, kernels::AttentionMask(), overlap);
  }

  std::shared_ptr<const AttentionCore> core_;
  AttentionCore::Shape shape_;
  Tensor qkv_, dqkv_, dattended_;
  AttentionCore::Saved saved_;
};

// Returns the time of the slowest rank.
double slowest(const Communicator& world, double value) {
  world.all_reduce(&value, &value, 1, DType::f64, ReduceOp::max, Stream::inline_()).wait();
  return value;
}

// Milliseconds of every round: {CORE: {"forward_ms": [...], "backward_ms": [...], "ms": [...]}}. All cores take their turn
// in a round, in every second round in reverse order, and the first round is not counted.
nlohmann::ordered_json times(const Communicator& world, const Options& options) {
  std::map<std::string, Attention> sides;
  for (const std::string& name : options.cores) sides.try_emplace(name, world, name, options);
  nlohmann::ordered_json result;
  std::vector<std::string> order = options.cores;
  for (int round = 0; round <= options.rounds; ++round) {
    for (const std::string& name : order) {
      Attention& side = sides.at(name);
      world.barrier(Stream::inline_()).wait();
      const double from = now_seconds();
      side.forward();
      const double between = now_seconds();
      side.backward();
      const double end = now_seconds();
      const std::array<std::pair<const char*, double>, 3> found = {
          {{"forward_ms", between - from}, {"backward_ms", end - between}, {"ms", end - from}}};
      for (const auto& [key, seconds] : found) {
        const double ms = slowest(world, seconds) * 1e3;
        if (round > 0) result[name][key].push_back(ms);
      }
    }
    std::reverse(order.begin(), order.end());
  }
  return result;
}

// {CORE: {"forward": figures, "backward": figures}}.
nlohmann::ordered_json overlap(const Communicator& world, const Options& options) {
  nlohmann::ordered_json result;
  for (const std::string& name : options.cores) {
    Attention side(world, name, options);
    for (const std::string& pass : options.passes) {
      const auto step = [&] { pass == "forward" ? side.forward() : side.backward(); };
      const std::uint64_t first = world.job().ledger().next_sequence();
      step();
      result[name][pass]["bytes_sent"] = world.job().ledger().traffic(first).bytes_sent;
      const OverlapTimes found =
          measure_overlap(world, step, {.warmup = 1, .steps = options.steps, .rounds = options.rounds});
      for (const auto& [key, value] : found.figures()) result[name][pass][key] = value;
    }
  }
  return result;
}

int measure(int argc, char** argv) {
  Options options;
  bool measures_overlap = false, no_overlap = false;
  CLI::App app("Measures attention over a sequence that is divided over ranks");
  app.add_option("--nproc", options.nproc, "Ranks to start on this host");
  app.add_option("--cores", options.cores, "local, zigzag, contiguous, striped, ulysses")->delimiter(',');
  app.add_option("--batch", options.shape.batch, "Sequences");
  app.add_option("--seq-length", options.shape.rows, "Tokens of a sequence");
  app.add_option("--heads", options.shape.heads);
  app.add_option("--head-size", options.shape.head_size);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "With --overlap, passes that are timed together")->check(CLI::PositiveNumber);
  app.add_option("--passes", options.passes, "With --overlap, forward and backward, or one of them")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward"}));
  app.add_flag("--overlap", measures_overlap,
               "Time forward and backward in full, computation only, communication only and serial");
  app.add_flag("--no-overlap", no_overlap, "Communicate after computing");
  CLI11_PARSE(app, argc, argv);
  options.overlap = !no_overlap;
  return launch(options.nproc, [&](const Communicator& world) {
    const nlohmann::ordered_json result = measures_overlap ? overlap(world, options) : times(world, options);
    if (world.rank() == 0) std::printf("%s\n", result.dump().c_str());
  });
}

}  // namespace

int main(int argc, char** argv) {
  return apps::exit_status([&] { return measure(argc, argv); });
}
