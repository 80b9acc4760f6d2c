#include "stretto/layers/replicated_state.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <vector>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "device/memory/shared_file.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/checkpoint_snapshot.hpp"
#include "layers/checkpoint/quantization_state.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;
using ShardBytes = std::vector<char>;

// What CheckpointSnapshot::write() would write.
ShardBytes shard_in_memory(const CheckpointSnapshot& snapshot, const std::map<std::string, std::string>& metadata) {
  struct File {
    int number = open_nameless_file();
    ~File() { close(number); }
  } const file;
  const fs::path path = fmt::format("/proc/self/fd/{}", file.number);
  snapshot.write(path, metadata);
  ShardBytes bytes(fs::file_size(path));
  std::ifstream reader(path, std::ios::binary);
  ensure(static_cast<bool>(reader.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))),
         "A shard of {} bytes in memory cannot be read again.", bytes.size());
  return bytes;
}

void write_shard(const fs::path& path, const ShardBytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) fail(ErrorCode::io, "Cannot write {}.", path.string());
  sync_to_disk(path);
}

// The rank that keeps another one's shard, too.
int keeper_of(int rank, int ranks) { return (rank + std::max(1, ranks / 2)) % ranks; }

}  // namespace

struct ReplicatedState::State {
  struct Generation {
    CheckpointIndex index;  // without shards and tensors
    std::int64_t step = -1;
    ShardBytes own, kept;
  };

  // A rank sends this to the other survivors.
  struct Holdings {
    std::int64_t job = 0, rank = 0, ranks = 0;
    std::array<std::int64_t, 2> steps{};

    bool has(std::int64_t step) const { return std::find(steps.begin(), steps.end(), step) != steps.end(); }
  };

  Communicator world;
  std::int64_t job = 0;
  std::string layout;
  std::array<Generation, 2> generations;
  std::size_t next = 0;  // of them

  std::vector<Holdings> of_all(const Communicator& left) const {
    const Holdings mine{job, world ? world.rank() : 0, world ? world.size() : 0, {generations[0].step, generations[1].step}};
    std::vector<Holdings> all(static_cast<std::size_t>(left.size()));
    left.all_gather(&mine, all.data(), sizeof mine, DType::u8, Stream::inline_(), {.tag = "replicated state"});
    return all;
  }
};

ReplicatedState::ReplicatedState() : state_(std::make_unique<State>()) {}
ReplicatedState::~ReplicatedState() = default;

void ReplicatedState::begin(const Communicator& world) {
  *state_ = State();
  state_->world = world;
  if (world.rank() == 0) {
    std::random_device random;
    state_->job = static_cast<std::int64_t>((std::uint64_t{random()} << 32U) | random());
  }
  world.broadcast(&state_->job, &state_->job, 1, DType::i64, 0, Stream::inline_(), {.tag = "replicated state"});
}

void ReplicatedState::keep(const ShardedParameters& parameters, const AdamWOptimizer& optimizer, std::int64_t step,
                           const std::map<std::string, std::string>& notes) {
  State& state = *state_;
  require(static_cast<bool>(state.world), "A state is kept for no job; call begin() first.");
  const Communicator& world = state.world;
  if (state.layout.empty()) state.layout = layout_text(parameters);
  State::Generation& generation = state.generations[state.next];
  generation.step = -1;
  generation.index = {.id = fmt::format("{:016x}", static_cast<std::uint64_t>(state.job + step)),
                      .step = step,
                      .optimizer_steps = optimizer.steps(),
                      .layout = state.layout,
                      .notes = notes};
  CheckpointSnapshot snapshot(parameters, optimizer, false);
  snapshot.take();
  const std::string file = shard_file(static_cast<std::size_t>(world.rank()));
  generation.own = shard_in_memory(snapshot, {{id_key, generation.index.id}, {shard_key, file}});
  if (world.size() > 1) {
    const int keeper = keeper_of(world.rank(), world.size());
    int kept = 0;
    while (keeper_of(kept, world.size()) != world.rank()) ++kept;
    const OperationOptions options{.tag = "replicated state"};
    const auto out = static_cast<std::int64_t>(generation.own.size());
    std::int64_t in = 0;
    world.send_recv(&out, 1, keeper, &in, 1, kept, DType::i64, Stream::inline_(), options);
    generation.kept.resize(static_cast<std::size_t>(in));
    world.send_recv(generation.own.data(), out, keeper, generation.kept.data(), in, kept, DType::u8, Stream::inline_(),
                    options);
  }
  generation.step = step;
  state.next = 1 - state.next;
}

std::optional<std::int64_t> ReplicatedState::save(const Communicator& left, const std::string& directory) const {
  const std::vector<State::Holdings> all = state_->of_all(left);
  const State::Holdings& mine = all[static_cast<std::size_t>(left.rank())];
  // Returns the survivor that writes a rank's shard of a step, or -1 if nobody has it.
  const auto writer_of = [&](int rank, std::int64_t step) {
    for (const int holder : {rank, keeper_of(rank, static_cast<int>(mine.ranks))}) {
      const auto one = std::find_if(all.begin(), all.end(), [&](const State::Holdings& its) { return its.rank == holder; });
      if (one != all.end() && one->has(step)) return holder;
    }
    return -1;
  };
  std::set<std::int64_t, std::greater<>> steps;
  for (const State::Holdings& its : all) {
    if (its.job != mine.job || its.ranks != mine.ranks) return std::nullopt;  // lost between two jobs
    steps.insert(its.steps.begin(), its.steps.end());
  }
  steps.erase(-1);
  const auto is_whole = [&](std::int64_t step) {
    for (int rank = 0; rank < mine.ranks; ++rank) {
      if (writer_of(rank, step) < 0) return false;
    }
    return true;
  };
  const auto newest = std::find_if(steps.begin(), steps.end(), is_whole);
  if (newest == steps.end()) return std::nullopt;

  const std::int64_t step = *newest;
  const std::string name = checkpoint_name(step);
  const fs::path unfinished = fs::path(directory) / unfinished_name(name);
  // Returns whether no rank has failed.
  const auto together = [&](const std::function<void()>& action) {
    std::int64_t failed = 0;
    try {
      action();
    } catch (const std::exception& error) {
      log().error("The state of step {} in memory was not saved in {}: {}", step, directory, error.what());
      failed = 1;
    }
    left.all_reduce(&failed, &failed, 1, DType::i64, ReduceOp::max, Stream::inline_(), {.tag = "replicated state"});
    return failed == 0;
  };
  const bool first = left.rank() == 0;
  const auto& generations = state_->generations;
  const State::Generation& generation = generations[0].step == step ? generations[0] : generations[1];
  const bool saved = together([&] {
                       if (first) begin_checkpoint(directory, name);
                     }) &&
                     together([&] {
                       for (int rank = 0; rank < mine.ranks; ++rank) {
                         if (writer_of(rank, step) != mine.rank) continue;
                         write_shard(unfinished / shard_file(static_cast<std::size_t>(rank)),
                                     rank == mine.rank ? generation.own : generation.kept);
                       }
                     }) &&
                     together([&] {
                       if (!first) return;
                       CheckpointIndex index = generation.index;
                       index_shards(index, unfinished, static_cast<std::size_t>(mine.ranks));
                       write_file(unfinished / "index.json", text_of(index));
                       publish_checkpoint(directory, name);
                     });
  if (!saved && first) discard_checkpoint(directory, name);
  if (!saved) return std::nullopt;
  return step;
}

}  // namespace stretto
