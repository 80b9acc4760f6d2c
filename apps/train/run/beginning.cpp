#include "apps/train/run/beginning.hpp"

#include "apps/common/fail.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/adapter_files.hpp"
#include "stretto/stretto.hpp"

namespace apps {

using namespace stretto;

void rank0_first(const Communicator& world, const std::function<void()>& look) {
  if (world.rank() != 0) world.barrier(Stream::inline_()).wait();
  look();
  if (world.rank() == 0) world.barrier(Stream::inline_()).wait();
}

namespace {

constexpr std::int64_t most_samples = std::int64_t{1} << 62;  // so that those of a step can be counted behind them

void read_adapters(const Communicator& world, const std::string& directory, const std::string& name, Trainer& trainer) {
  rank0_first(world, [&] { AdapterFiles::of_directory(directory).load(trainer, name); });
  trainer.optimizer().restore(0);
}

LoadedCheckpoint read(const std::string& checkpoint, bool resumes, int replica, Trainer& trainer) {
  try {
    return load_checkpoint(trainer.sharded(), trainer.optimizer(), checkpoint, resumes, resumes ? replica : 0);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument || has_sizes(read_notes(checkpoint).notes)) throw;
    fail(error.code(),
         "{} Its index.json does not say what --num-layers, --hidden-size, --num-attention-heads, "
         "--vocab-size and --seq-length were; give them.",
         error.what());
  }
}

}  // namespace

Beginning begin_training(const Communicator& world, const CommandLine& line, const Notes& run, int replica,
                         Trainer& trainer) {
  Beginning begun{.resumed = line.resume == Resume::yes};
  if (const std::optional<ModelFiles> files = line.weights.files()) {
    rank0_first(world, [&] { files->load(trainer); });
    trainer.optimizer().restore(0);
  }
  if (!begun.resumed && !line.weights.load_adapter.empty()) read_adapters(world, line.weights.load_adapter, "", trainer);
  for (const WithAdapter& each : line.with) {
    read_adapters(world, each.directory, each.name, trainer);
    trainer.weigh_adapters({{each.name, each.weight}});
  }
  if (line.load.empty() && !begun.resumed) return begun;

  LoadedCheckpoint loaded;
  rank0_first(world, [&] {
    std::string left_out;
    const std::string checkpoint = find_checkpoint(begun.resumed ? line.save : line.load, &left_out);
    const int saved_by = read_notes(checkpoint).replicas;
    require(
        !begun.resumed || saved_by == line.trainer.diloco.replicas,
        "{} was saved by {} replicas, and this job has {}; give --replicas {}, or begin with the weights of the first one "
        "by --load.",
        checkpoint, saved_by, line.trainer.diloco.replicas, saved_by);
    loaded = read(checkpoint, begun.resumed, replica, trainer);
    if (begun.resumed) trainer.check_notes(loaded.notes);
    if (!left_out.empty())
      begun.to_say.push_back(fmt::format("{} has no index.json and is left out; loaded {}.", left_out, checkpoint));
    if (!begun.resumed) return;
    require(loaded.step <= line.steps, "The checkpoint in --save {} is of step {}, beyond --train-iters {}.", line.save,
            loaded.step, line.steps);
    begun.samples = loaded.number(consumed_samples_note, loaded.step * line.trainer.global_batch);
    if (begun.samples < 0 || begun.samples > most_samples)
      fail(ErrorCode::io, "{} says that {} sequences have been trained on, which cannot be.", checkpoint, begun.samples);
    const std::string changes = changes_of_run(loaded, run, line.allow_changes);
    if (!changes.empty()) begun.to_say.push_back(changes);
  });
  require_same(world, {{begun.resumed ? "The step in --save" : "The step in --load", std::to_string(loaded.step)}});
  trainer.optimizer().restore(loaded.optimizer_steps);
  if (!begun.resumed) return begun;
  trainer.restore(loaded.notes);
  begun.step = loaded.step;
  if (line.trainer.sharding.delay > 0 && !trainer.sharded().has_late() && loaded.step > 0 &&
      loaded.optimizer_steps >= line.trainer.delay_from) {
    begun.to_say.emplace_back(
        "The checkpoint has no gradients of its last step, so that the first step of --delay 1 updates nothing.");
  }
  return begun;
}

}  // namespace apps
