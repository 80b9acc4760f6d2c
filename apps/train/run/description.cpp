#include "apps/train/run/description.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>

#include "apps/common/size_text.hpp"
#include "apps/train/options/server_options.hpp"
#include "stretto/device.hpp"

namespace apps {

using namespace stretto;

namespace {

// Says how many parameters are trained where others are frozen.
std::string trained(const CommandLine& line, const Trainer& trainer) {
  if (!line.trainer.adapters.any()) return "";
  std::int64_t elements = 0;
  for (const auto& parameter : trainer.parameters().all()) {
    if (parameter->trainable) elements += parameter->global_elements();
  }
  return fmt::format(", of which {} are trained", elements);
}

std::string rounds(const DiLoCoOptions& diloco, const std::vector<std::int64_t>& elements) {
  return fmt::format(
      "Replicas agree every {} steps: outer lr {}, momentum {}; every {} steps one of {} fragments is "
      "exchanged{}, of at most {} elements of this rank, and merged {} steps later, alpha {}",
      diloco.sync_every, diloco.lr, diloco.momentum, diloco.interval(), diloco.fragments,
      diloco.format == QuantizedFormat::none ? "" : fmt::format(" in {}", name(diloco.format)),
      *std::max_element(elements.begin(), elements.end()), diloco.fragment_sync_delay, diloco.fragment_update_alpha);
}

std::vector<std::string> pipeline_description(const CommandLine& line, Trainer& trainer) {
  const StageDivision& options = line.trainer.stages;
  const Schedule& schedule = trainer.pipeline().schedule();
  if (schedule.stages == 1 && options.schedule_name == StageDivision().schedule_name) return {};
  std::vector<std::string> result = {
      fmt::format("{} pipeline: {}", schedule.name, to_string(options.cut(line.trainer.model, schedule, 0)))};
  if (!trainer.flushes()) {
    std::vector<int> versions;
    versions.reserve(static_cast<std::size_t>(schedule.stages));
    for (int stage = 0; stage < schedule.stages; ++stage) versions.push_back(versions_of(schedule, stage));
    result.push_back(
        fmt::format("There is no flush between steps: stages keep {} versions of their weights{}, and read "
                    "some that lack {} updates.",
                    fmt::join(versions, ", "), schedule.stashes ? "" : ", corrected ones included",
                    fmt::join(simulate(schedule).delay, ", ")));
  }
  if (schedule.all_microbatches() >= schedule.stages) return result;
  result.push_back(fmt::format(
      "A step has fewer microbatches ({}) than stages ({}), so that stages wait; give --global-batch-size {} or more.",
      schedule.microbatches, schedule.stages,
      line.trainer.micro_batch * trainer.mesh().size(sequence_axes) * schedule.stages * line.trainer.diloco.replicas));
  return result;
}

}  // namespace

std::vector<std::string> model_description(const CommandLine& line, const Trainer& trainer) {
  std::vector<std::string> result;
  if (line.device == Device::cuda) {
    const GpuInfo gpu = gpu_info().value();
    result.push_back(fmt::format("on {}, {:.1f} GiB", gpu.name, static_cast<double>(gpu.memory_bytes) / (1 << 30)));
  }
  const DecoderShape& model = line.trainer.model;
  result.push_back(fmt::format("{} parameters{}: {} layers, {} wide, {} heads, {} tokens a sequence, {}",
                               trainer.parameters().global_elements(), trained(line, trainer), model.layers, model.hidden,
                               model.heads, model.sequence, training_name(line.trainer.sharding.dtype)));
  return result;
}

std::vector<std::string> layout_description(const CommandLine& line, Trainer& trainer, int ranks) {
  const DiLoCoOptions& diloco = line.trainer.diloco;
  const Mesh& mesh = trainer.mesh();
  const std::int64_t per_pass = line.trainer.micro_batch * mesh.size(sequence_axes) * diloco.replicas;
  std::vector<std::string> result = {fmt::format(
      "{} ranks: {}dp {} x tp {} x pp {}{}{}; {} sequences x {} tokens a step = {} microbatches of {} on each dp rank",
      ranks, diloco.any() ? fmt::format("{} replicas of ", diloco.replicas) : "", mesh.size(Axis::data),
      mesh.size(Axis::tensor), mesh.size(Axis::pipeline),
      mesh.size(Axis::ring) > 1 ? fmt::format(" x cp {}", mesh.size(Axis::ring)) : "",
      mesh.size(Axis::ulysses) > 1 ? fmt::format(" x ulysses {}", mesh.size(Axis::ulysses)) : "", line.trainer.global_batch,
      line.trainer.model.sequence, line.trainer.global_batch / per_pass, line.trainer.micro_batch)};
  if (const ServerOptions& servers = line.trainer.servers; servers.any()) {
    result.push_back(
        fmt::format("{} more ranks are servers, which hold the values and update them; consistency {}{}", servers.count,
                    consistency_text(servers.consistency),
                    servers.copies > 0 ? fmt::format("; {} others have a copy of what each has", servers.copies) : ""));
  }
  if (diloco.any()) result.push_back(rounds(diloco, trainer.diloco()->elements()));
  for (const std::string& each : pipeline_description(line, trainer)) result.push_back(each);
  return result;
}

std::vector<std::string> file_description(Trainer& trainer) {
  std::vector<OffloadUse> files = trainer.sharded().offloaded();
  if (const std::optional<OffloadUse> state = trainer.optimizer().offloaded()) files.push_back(*state);
  if (const std::optional<OffloadUse> inputs = trainer.model().offloaded()) files.push_back(*inputs);
  std::vector<std::string> result;
  result.reserve(files.size());
  for (const OffloadUse& use : files) {
    result.push_back(fmt::format(
        "A rank has {} of {} in {}, {}, {}", size_text(static_cast<double>(use.bytes)), use.what, use.directory,
        use.bypasses_cache ? "past the page cache (O_DIRECT)" : "through the page cache, since there is no O_DIRECT",
        use.io_uring ? "by io_uring" : "by pread and pwrite, since io_uring is not there"));
  }
  return result;
}

std::string next_command(const CommandLine& line) {
  if (line.save.empty()) return "The run ends without a checkpoint, which --save DIR would write.";
  std::string vocabulary;
  if (line.saves_adapters_only && !line.weights.place().empty()) {
    vocabulary = fmt::format(" {} {}", line.weights.flag(), line.weights.place());
  }
  if (!line.data.vocabulary_file.empty()) {
    vocabulary += fmt::format(" --vocab-file {} --merges-file {}", line.data.vocabulary_file, line.data.merges_file);
  }
  if (!line.data.tokenizer.empty()) {
    vocabulary += fmt::format(" --tokenizer {}", line.data.tokenizer);
    if (!line.data.tokenizer_pattern.empty()) vocabulary += " --tokenizer-pattern " + line.data.tokenizer_pattern;
  }
  return fmt::format(
      "Next: {} --nproc 1 --sample-only --load {}{} --prompt TEXT writes on from a text; the same command "
      "with --resume and a larger --train-iters than {} trains on.",
      program_invocation_name, line.save, vocabulary, line.steps);
}

}  // namespace apps
