#include <fmt/format.h>
#include <sys/resource.h>

#include <array>
#include <exception>
#include <random>
#include <tuple>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/checkpoint_snapshot.hpp"
#include "layers/checkpoint/quantization_state.hpp"
#include "layers/served/served_shards.hpp"
#include "stretto/layers/checkpoint.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;

constexpr int nice_of_background = 19;  // computation comes first where there is a thread for each core

// Calls f; returns what it throws, as an Error.
template <class F>
std::exception_ptr error_of(const fs::path& directory, F f) {
  try {
    f();
    return nullptr;
  } catch (const fs::filesystem_error& error) {
    return std::make_exception_ptr(Error(
        ErrorCode::io, fmt::format("Cannot save a checkpoint in {}: {}.", directory.string(), error.code().message())));
  } catch (...) {
    return std::current_exception();
  }
}

constexpr const char* trial_name = "step_trial";

fs::path normal(const fs::path& directory) {
  fs::path result = fs::absolute(directory).lexically_normal();
  return result.has_filename() ? result : result.parent_path();  // "a/" is "a"
}

// The outermost of a directory and those around it that does not exist; empty if all do.
fs::path first_missing(const fs::path& directory) {
  fs::path missing;
  std::error_code ignored;
  for (fs::path at = normal(directory); !fs::exists(at, ignored) && at.has_relative_path(); at = at.parent_path())
    missing = at;
  return missing;
}

// Removes a directory and those around it, up to `outermost`, unless there is something in them; nothing if that is empty.
void remove_empty(const fs::path& directory, const fs::path& outermost) {
  if (outermost.empty()) return;
  std::error_code error;
  for (fs::path at = normal(directory); fs::remove(at, error) && at != outermost;) at = at.parent_path();
}

}  // namespace

// All ranks take three steps together: rank 0 makes the directory; every rank writes its shard; rank 0 writes the index and
// gives the checkpoint its name. After each they agree on the first rank that failed, so that all throw or none.
struct CheckpointSaver::State {
  State(const ShardedParameters& its_parameters, const Optimizer& its_optimizer, fs::path its_directory,
        const Options& its_options)
      : parameters(its_parameters),
        optimizer(its_optimizer),
        directory(std::move(its_directory)),
        options(its_options),
        ranks((its_options.ranks ? its_options.ranks : its_parameters.mesh().world()).duplicate("checkpoints")),
        snapshot(its_parameters, its_optimizer,
                 {.copies = its_options.in_background,
                  .trained_only = its_options.trained_only,
                  .shard = static_cast<std::size_t>(ranks.rank())}),
        stream("checkpoints", Priority::background, Device::cpu) {}

  bool is_first() const { return ranks.rank() == 0; }
  ServerSet* servers() const { return parameters.servers(); }
  fs::path unfinished() const { return directory / unfinished_name(name); }

  // Rank 0 makes the directory, and draws the number that tells the shards of this checkpoint from those of others.
  void begin() {
    std::array<std::int64_t, 2> drawn{};  // and whether there is a directory
    if (is_first()) {
      error = error_of(directory, [&] { begin_checkpoint(directory, name); });
      std::random_device random;
      drawn = {static_cast<std::int64_t>((std::uint64_t{random()} << 32U) | random()), error == nullptr ? 1 : 0};
    }
    ranks.broadcast(drawn.data(), drawn.data(), 2, DType::i64, 0, Stream::inline_(), {.tag = "checkpoint"}).wait();
    index.id = fmt::format("{:016x}", static_cast<std::uint64_t>(drawn[0]));
    if (drawn[1] == 0) throw_error_of(0);
  }

  // Of servers: their own shards, for which the first worker asks.
  void write_served_shards() {
    error = error_of(directory, [&] { served = stretto::write_served_shards(*servers(), unfinished(), index.id); });
  }

  void write_shard() {
    if (servers() != nullptr) {
      if (is_first()) write_served_shards();
      return report_error();
    }
    if (options.in_background) setpriority(PRIO_PROCESS, 0, nice_of_background);  // of this thread
    const std::string file = shard_file(static_cast<std::size_t>(ranks.rank()));
    error = error_of(directory, [&] {
      const std::uint64_t digest = snapshot.write(unfinished() / file, {{id_key, index.id}, {shard_key, file}});
      digests[static_cast<std::size_t>(ranks.rank())] = static_cast<std::int64_t>(digest);
    });
    report_error();
  }

  void publish() {
    if (!is_first() || failed != 0) return;
    error = error_of(directory, [&] {
      index_shards(index, unfinished(), servers() != nullptr ? served : digests);
      write_to_disk(unfinished() / "index.json", text_of(index) + '\n');
      publish_checkpoint(directory, name);
      if (options.keep > 0) remove_old_checkpoints(directory, options.keep);
    });
    report_error();
  }

  // As if a checkpoint were saved, with a byte of each rank.
  void try_directory() {
    index = {};
    name = trial_name;
    const fs::path made = is_first() ? first_missing(directory) : fs::path();
    try {
      begin();
      const std::string file = shard_file(static_cast<std::size_t>(ranks.rank()));
      auto shards = static_cast<std::size_t>(ranks.size());
      error = error_of(directory, [&] {
        if (servers() == nullptr) write_to_disk(unfinished() / file, "\n");
        if (servers() != nullptr && is_first()) shards = try_served_shards(*servers(), unfinished(), index.id);
      });
      finish_trial_round();
      error = error_of(directory, [&] {
        for (std::size_t shard = 0; is_first() && shard < shards; ++shard) require_shard(unfinished(), shard);
      });
      finish_trial_round();
    } catch (...) {
      discard();
      remove_empty(directory, made);
      throw;
    }
    discard();
    remove_empty(directory, made);
  }

  void finish_trial_round() {
    report_error();
    ranks.all_reduce(&failed, &failed, 1, DType::i64, ReduceOp::max, Stream::inline_(), {.tag = "checkpoint"}).wait();
    if (failed != 0) throw_error_of(ranks.size() - failed);
  }

  void report_error() { failed = error ? ranks.size() - ranks.rank() : 0; }
  // The first rank that failed has the largest number.
  void agree() {
    std::ignore = ranks.all_reduce(&failed, &failed, 1, DType::i64, ReduceOp::max, stream, {.tag = "checkpoint"});
  }

  void discard() const {
    if (is_first()) discard_checkpoint(directory, name);
  }

  [[noreturn]] void throw_error_of(std::int64_t rank) {
    discard();
    if (rank == ranks.rank()) std::rethrow_exception(std::exchange(error, nullptr));
    error = nullptr;
    fail(ErrorCode::peer_gave_up, "Rank {} could not save the checkpoint of step {} in {}.", rank, index.step,
         directory.string());
  }

  const ShardedParameters& parameters;
  const Optimizer& optimizer;
  const fs::path directory;
  const Options options;
  Communicator ranks;
  CheckpointSnapshot snapshot;
  std::string name;
  CheckpointIndex index;
  std::vector<std::int64_t> digests;  // of the shards; before ranks agree, 0 but for this rank's
  std::vector<std::int64_t> served;   // those of servers' shards, on the first rank
  std::exception_ptr error;           // of this rank
  std::int64_t failed = 0;            // 0: none; else the ranks from the first that failed on
  bool is_saving = false;
  Work work;
  Stream stream;  // last, so that its tasks end before what they use
};

CheckpointSaver::CheckpointSaver(const ShardedParameters& parameters, const Optimizer& optimizer, std::string directory,
                                 const Options& options) {
  require(options.keep >= 0, "Of the checkpoints in {}, {} cannot be kept; give 1 or more, or 0 for all.", directory,
          options.keep);
  require(!parameters.is_served() || !options.in_background,
          "No checkpoint can be written to {} in the background: parameter servers, which write it, serve nobody meanwhile; "
          "let workers wait.",
          directory);
  state_ = std::make_unique<State>(parameters, optimizer, std::move(directory), options);
}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (const std::exception& error) {
    log().error("A checkpoint was not saved: {}", error.what());
  }
}

void CheckpointSaver::save(std::int64_t step, const std::map<std::string, std::string>& notes) {
  wait();
  State& state = *state_;
  state.index = {.step = step,
                 .optimizer_steps = state.optimizer.steps(),
                 .optimizer = state.optimizer.kind(),
                 .layout = layout_text(state.parameters),
                 .choices = state.parameters.mesh().world().choices(),
                 .trained_only = state.options.trained_only,
                 .replicas = state.ranks.size() / state.parameters.mesh().world().size(),
                 .has_late = state.parameters.has_late(),
                 .in_flight = state.parameters.in_flight(),
                 .notes = state.optimizer.notes()};
  state.index.notes.insert(notes.begin(), notes.end());
  text_of(state.index);  // throws for notes that cannot be written
  state.name = checkpoint_name(step);
  state.begin();
  if (state.servers() == nullptr) state.snapshot.take();  // of what this rank updates: values on their way are others'
  state.digests.assign(static_cast<std::size_t>(state.ranks.size()), 0);
  state.is_saving = true;
  state.stream.enqueue([&state] { state.write_shard(); });
  std::ignore = state.ranks.all_reduce(state.digests.data(), state.digests.data(), state.ranks.size(), DType::i64,
                                       ReduceOp::sum, state.stream, {.tag = "checkpoint"});
  state.agree();
  state.stream.enqueue([&state] { state.publish(); });
  state.agree();
  state.work = state.stream.enqueue([] {});
  if (!state.options.in_background) wait();
}

void CheckpointSaver::wait() {
  State& state = *state_;
  if (!std::exchange(state.is_saving, false)) return;
  try {
    state.work.wait();
  } catch (...) {  // a rank is lost
    state.discard();
    throw;
  }
  if (state.failed != 0) state.throw_error_of(state.ranks.size() - state.failed);
}

void CheckpointSaver::check_directory() {
  wait();
  state_->try_directory();
}

bool CheckpointSaver::is_idle() const { return !state_->is_saving || state_->work.done(); }

void save_checkpoint(const ShardedParameters& parameters, const Optimizer& optimizer, const std::string& directory,
                     std::int64_t step, const std::map<std::string, std::string>& notes) {
  CheckpointSaver(parameters, optimizer, directory, {}).save(step, notes);
}

}  // namespace stretto
