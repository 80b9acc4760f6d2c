#include "stretto/layers/replicated_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/checkpoint_snapshot.hpp"
#include "layers/checkpoint/quantization_state.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;

// Returns the digest, as bits.
std::int64_t write_shard(const fs::path& path, const Tensor& bytes) {
  write_to_disk(path, {static_cast<const char*>(bytes.raw()), bytes.bytes()});
  FileDigest digest;
  digest.add(bytes.raw(), bytes.bytes());
  return static_cast<std::int64_t>(digest.value());
}

// Ranks of a group have equal numbers.
int group_of(int rank, int ranks) { return rank % std::max(1, ranks / 2); }

std::vector<int> members_of(int group, int ranks) {
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) {
    if (group_of(rank, ranks) == group) members.push_back(rank);
  }
  return members;
}

}  // namespace

struct ReplicatedState::State {
  // A state of training: the files of the group's shards, one behind the other.
  struct Generation {
    CheckpointIndex index{.step = -1};  // without shards and tensors
    bool complete = false;              // on this rank
    std::vector<std::int64_t> bytes;
    Tensor files;
    std::int64_t id_at = 0;  // in this rank's file

    std::int64_t step() const { return complete ? index.step : -1; }

    Tensor file(std::size_t member) const {
      std::int64_t first = 0;
      for (std::size_t i = 0; i < member; ++i) first += bytes[i];
      return files.view(first, {bytes[member]});
    }
  };

  // A rank sends this to the other survivors.
  struct Holdings {
    std::int64_t job = 0, rank = -1, ranks = 0;  // without ranks: it joined the job later
    std::array<std::int64_t, 2> steps{};

    bool has(std::int64_t step) const { return std::find(steps.begin(), steps.end(), step) != steps.end(); }
  };

  std::int64_t job = 0;
  int rank = -1, ranks = 0;
  std::string layout, choices;
  std::vector<int> members;  // of this rank's group
  std::array<Generation, 2> generations;
  std::size_t next = 0;  // of them
  bool has_one = false;  // when nothing is under way
  Communicator all, group;
  Stream stream = Stream::inline_();
  Work under_way;
  std::unique_ptr<State> before;  // of the job before, until this one has a state on all ranks

  std::size_t member_of(int its_rank) const {
    return static_cast<std::size_t>(std::find(members.begin(), members.end(), its_rank) - members.begin());
  }

  // Makes room for the files, and writes the header of this rank's, which has the same size in every step unless gradients
  // are quantized.
  void prepare(Generation& generation, const ShardedParameters& parameters, const Optimizer& optimizer,
               const std::vector<TensorToSave>& values) const {
    CheckpointSnapshot snapshot(parameters, optimizer, {.shard = static_cast<std::size_t>(rank)});
    snapshot.take();
    const std::string name = shard_file(static_cast<std::size_t>(rank));
    const std::string header = snapshot.header(name, {{id_key, generation.index.id}, {shard_key, name}});
    auto own = static_cast<std::int64_t>(header.size());
    for (const TensorToSave& each : values) own += static_cast<std::int64_t>(each.values.bytes());
    generation.bytes.resize(members.size());
    group.all_gather(&own, generation.bytes.data(), 1, DType::i64, Stream::inline_(), {.tag = tag}).wait();
    std::int64_t all_bytes = 0;
    for (const std::int64_t each : generation.bytes) all_bytes += each;
    if (!generation.files || generation.files.size() != all_bytes) {
      const MemoryScope buffers(MemoryKind::buffers);
      generation.files = Tensor();
      generation.files = Tensor::symmetric({all_bytes}, DType::u8);
    }
    generation.file(member_of(rank)).view(0, {static_cast<std::int64_t>(header.size())}).copy_from_host(header.data());
    generation.id_at = static_cast<std::int64_t>(header.find(generation.index.id));
  }

  // Nothing of a lost job is under way any more.
  void end_what_is_under_way() {
    try {
      std::exchange(under_way, Work()).wait();
    } catch (const std::exception&) {  // the caller knows of the loss, or an operation of its own will tell it
    }
  }

  void leave_job() {
    all = group = Communicator();
    stream = Stream::inline_();
    before.reset();
  }

  std::optional<std::int64_t> save(const Communicator& left, const std::string& directory) const;

  std::vector<Holdings> of_all(const Communicator& left) const {
    const Holdings mine{job, rank, ranks, {generations[0].step(), generations[1].step()}};
    std::vector<Holdings> all_of_them(static_cast<std::size_t>(left.size()));
    left.all_gather(&mine, all_of_them.data(), sizeof mine, DType::u8, Stream::inline_(), {.tag = tag}).wait();
    return all_of_them;
  }

  static constexpr const char* tag = "replicated state";
};

ReplicatedState::ReplicatedState() : state_(std::make_unique<State>()) {}
ReplicatedState::~ReplicatedState() { state_->end_what_is_under_way(); }

void ReplicatedState::begin(const Communicator& world) {
  state_->end_what_is_under_way();
  state_->leave_job();
  std::unique_ptr<State> before = std::exchange(state_, std::make_unique<State>());
  State& state = *state_;
  if (before->ranks > 0) state.before = std::move(before);
  state.rank = world.rank();
  state.ranks = world.size();
  state.members = members_of(group_of(state.rank, state.ranks), state.ranks);
  state.all = world.duplicate(State::tag);
  state.group = world.split(state.members.front(), state.rank, State::tag);
  state.stream = Stream(State::tag, Priority::background, Device::cpu);
  if (world.rank() == 0) {
    std::random_device random;
    state.job = static_cast<std::int64_t>((std::uint64_t{random()} << 32U) | random());
  }
  world.broadcast(&state.job, &state.job, 1, DType::i64, 0, Stream::inline_(), {.tag = State::tag}).wait();
}

void ReplicatedState::keep(const ShardedParameters& parameters, const Optimizer& optimizer, std::int64_t step,
                           const std::map<std::string, std::string>& notes) {
  State& state = *state_;
  require(static_cast<bool>(state.all), "A state is kept for no job; call begin() first.");
  wait();
  if (state.layout.empty()) {
    state.layout = layout_text(parameters);
    state.choices = state.all.choices();
  }
  State::Generation& generation = state.generations[state.next];
  generation.complete = false;
  generation.index = {.id = fmt::format("{:016x}", static_cast<std::uint64_t>(state.job + step)),
                      .step = step,
                      .optimizer_steps = optimizer.steps(),
                      .optimizer = optimizer.kind(),
                      .layout = state.layout,
                      .choices = state.choices,
                      .has_late = parameters.has_late(),
                      .notes = optimizer.notes()};
  generation.index.notes.insert(notes.begin(), notes.end());
  const std::vector<TensorToSave> values = tensors_to_save(parameters, optimizer);
  const bool changes_size = parameters.options().qgz != QuantizedFormat::none || parameters.options().powersgd.any() ||
                            optimizer.kind().momentum_exchange.has_value();
  if (!generation.files || changes_size) state.prepare(generation, parameters, optimizer, values);
  const Tensor own = generation.file(state.member_of(state.rank));
  auto* const file = static_cast<std::byte*>(own.raw());
  std::memcpy(file + generation.id_at, generation.index.id.data(), generation.index.id.size());
  std::byte* to = file + own.size();
  for (auto each = values.rbegin(); each != values.rend(); ++each) {
    to -= each->values.bytes();
    kernels::copy(each->values.raw(), to, each->values.bytes(), true);  // nobody reads it soon
    if (each->unit) optimizer.release(*each->unit);
  }
  std::ignore = state.group.all_gather_v(own.raw(), generation.files.raw(), generation.bytes, DType::u8, state.stream,
                                         {.tag = State::tag});
  state.stream.enqueue([&generation] { generation.complete = true; });
  // The next state overwrites the one before this one, which must not be needed any more.
  state.under_way = state.all.barrier(state.stream, {.tag = State::tag});
  state.next = 1 - state.next;
  state.has_one = true;
}

void ReplicatedState::wait() {
  std::exchange(state_->under_way, Work()).wait();
  if (state_->has_one) state_->before.reset();
}

// Ranks that were lost while the first state of a job was under way may differ in whether they still have the one before.
std::optional<std::int64_t> ReplicatedState::save(const Communicator& left, const std::string& directory) {
  state_->end_what_is_under_way();
  const std::optional<std::int64_t> saved = state_->save(left, directory);
  if (saved) return saved;
  const State nothing;
  return (state_->before ? *state_->before : nothing).save(left, directory);
}

std::optional<std::int64_t> ReplicatedState::State::save(const Communicator& left, const std::string& directory) const {
  const std::vector<Holdings> all_of_them = of_all(left);
  const auto any = std::find_if(all_of_them.begin(), all_of_them.end(), [](const Holdings& its) { return its.ranks > 0; });
  if (any == all_of_them.end()) return std::nullopt;
  const Holdings& lost = *any;  // the job
  // Returns the survivor that writes a rank's shard of a step, or -1 if nobody has it.
  const auto writer_of = [&](int its_rank, std::int64_t step) {
    const int its_group = group_of(its_rank, static_cast<int>(lost.ranks));
    int writer = -1;
    for (const Holdings& its : all_of_them) {
      if (!its.has(step) || group_of(static_cast<int>(its.rank), static_cast<int>(lost.ranks)) != its_group) continue;
      if (writer < 0 || its.rank == its_rank) writer = static_cast<int>(its.rank);
    }
    return writer;
  };
  std::set<std::int64_t, std::greater<>> steps;
  for (const Holdings& its : all_of_them) {
    if (its.ranks == 0) continue;
    if (its.job != lost.job || its.ranks != lost.ranks) return std::nullopt;  // lost between two jobs
    steps.insert(its.steps.begin(), its.steps.end());
  }
  steps.erase(-1);
  const auto is_whole = [&](std::int64_t step) {
    for (int one = 0; one < lost.ranks; ++one) {
      if (writer_of(one, step) < 0) return false;
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
    left.all_reduce(&failed, &failed, 1, DType::i64, ReduceOp::max, Stream::inline_(), {.tag = tag}).wait();
    return failed == 0;
  };
  const bool first = left.rank() == 0;
  // Rank 0, which writes the index, need not have the files of its group.
  const Generation& generation = generations[0].index.step == step ? generations[0] : generations[1];
  std::vector<std::int64_t> digests(static_cast<std::size_t>(lost.ranks));  // of the shards, at the ranks that write them
  const bool saved = together([&] {
                       if (first) begin_checkpoint(directory, name);
                     }) &&
                     together([&] {
                       for (int one = 0; one < lost.ranks; ++one) {
                         if (writer_of(one, step) != rank) continue;
                         const auto i = static_cast<std::size_t>(one);
                         digests[i] = write_shard(unfinished / shard_file(i), generation.file(member_of(one)));
                       }
                     }) &&
                     together([&] {
                       left.reduce(digests.data(), digests.data(), lost.ranks, DType::i64, ReduceOp::sum, 0,
                                   Stream::inline_(), {.tag = tag})
                           .wait();
                       if (!first) return;
                       CheckpointIndex index = generation.index;
                       index_shards(index, unfinished, digests);
                       write_to_disk(unfinished / "index.json", text_of(index) + '\n');
                       publish_checkpoint(directory, name);
                     });
  if (!saved && first) discard_checkpoint(directory, name);
  if (!saved) return std::nullopt;
  return step;
}

}  // namespace stretto
