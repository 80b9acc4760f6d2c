#include "apps/train/options/command_line.hpp"

#include <algorithm>
#include <iterator>

#include "apps/common/fail.hpp"
#include "apps/train/examples/example_data.hpp"
#include "apps/train/options/data_options.hpp"
#include "apps/train/report/report.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/adapter_files.hpp"
#include "stretto/overlap/trace.hpp"

namespace apps {

using namespace stretto;

MeshShape CommandLine::mesh_on(int ranks) const {
  const MeshShape& mesh = trainer.mesh;
  const int replicas = trainer.diloco.replicas;
  require(ranks > trainer.servers.count, "--servers {} of {} ranks leave no worker; give fewer, or more ranks.",
          trainer.servers.count, ranks);
  ranks -= trainer.servers.count;
  require(ranks % replicas == 0, "--replicas {} does not divide {} ranks.", replicas, ranks);
  ranks /= replicas;
  require(mesh[Axis::tensor] >= 1 && mesh[Axis::pipeline] >= 1, "--tp {} and --pp {} must be at least 1.",
          mesh[Axis::tensor], mesh[Axis::pipeline]);
  require(mesh[Axis::data] >= 0, "--dp {} must be at least 1.", mesh[Axis::data]);
  MeshShape whole = mesh;
  whole[Axis::data] = 1;
  const std::int64_t others = whole.ranks();
  std::string flags;
  for (const Axis axis : {Axis::tensor, Axis::pipeline, Axis::ring, Axis::ulysses}) {
    const bool always = axis == Axis::tensor || axis == Axis::pipeline;
    if (always || mesh[axis] > 1)
      flags += fmt::format("{}--{} {}", flags.empty() ? "" : " times ", short_name(axis), mesh[axis]);
  }
  require(ranks % others == 0, "{} ranks{} do not divide into groups of {}.", ranks,
          replicas > 1 ? fmt::format(" of each of --replicas {}", replicas) : "", flags);
  whole[Axis::data] = static_cast<int>(ranks / others);
  require(mesh[Axis::data] == 0 || mesh[Axis::data] == whole[Axis::data], "--dp {} times {} is not the number of ranks, {}.",
          mesh[Axis::data], flags, ranks);
  return whole;
}

// A GGUF file has the tokenizer of its model.
DataOptions CommandLine::data_with_tokenizer() const {
  DataOptions named = data;
  if (data.tokenizer.empty() && data.vocabulary_file.empty()) named.tokenizer = weights.load_gguf;
  return named;
}

std::shared_ptr<const TrainingData> CommandLine::training_data() const {
  if (data.train.empty()) return nullptr;
  if (training_data_ == nullptr) {
    training_data_ =
        make_training_data(data_with_tokenizer(), trainer.model.vocabulary, trainer.model.sequence, trainer.seed);
  }
  return training_data_;
}

std::unique_ptr<Tokenizer> CommandLine::tokenizer(const std::shared_ptr<const TrainingData>& its_data) const {
  const bool is_bytes =
      its_data ? its_data->is_bytes()
               : data.vocabulary_file.empty() && data.tokenizer.empty() && trainer.model.vocabulary == byte_values;
  auto result = make_tokenizer(is_bytes ? data : data_with_tokenizer(), is_bytes, trainer.model.vocabulary);
  result->encode(prompt);
  return result;
}

CommandLine CommandLine::laid_out(const TrainingOptions& other) const {
  CommandLine result = *this;
  result.trainer = other;
  return result;
}

CommandLine CommandLine::after(std::int64_t steps_done, std::int64_t layouts_asked) const {
  if (relayouts_on_signal()) {
    if (layouts_asked == 0) return *this;
    return laid_out(relayouts[std::min(static_cast<std::size_t>(layouts_asked), relayouts.size()) - 1].trainer);
  }
  const auto later = std::ranges::find_if(relayouts, [&](const Relayout& each) { return each.step > steps_done; });
  return later == relayouts.begin() ? *this : laid_out(std::prev(later)->trainer);
}

void CommandLine::check_layout(int ranks) const {
  bool stashes = true, flushes = true;
  if (layout.automatic) {  // the name alone is known
    const bool given = layout.given.contains("--schedule");
    stashes = !given || trainer.stages.schedule_name != "pipemare";
    flushes = !given || std::ranges::find(all_window_kinds(), trainer.stages.schedule_name, &WindowKind::name) ==
                            all_window_kinds().end();
  } else {
    const Schedule schedule = trainer.on(mesh_on(ranks)).check();
    stashes = schedule.stashes;
    flushes = !is_window(schedule);
  }
  require(flushes || (!replicate_state && !comm_report),
          "--schedule {} has no flush between steps, in which --replicate-state and --comm-report have their place; leave "
          "them out.",
          trainer.stages.schedule_name);
  require(!stashes || pipemare_flags.empty(), "{} has no effect without --schedule pipemare; leave it out.", pipemare_flags);
  require(check_replicas == 0 || layout.automatic || trainer.sharding.zero != ZeroStage::values,
          "--check-replicas {} compares copies, and --zero 3 keeps none; leave one of them out.", check_replicas);
  require(
      check_replicas == 0 || layout.automatic || !mesh_on(ranks).divided(token_axes).empty(),
      "--check-replicas {} compares copies, and this layout has one of each parameter; start more ranks, or leave it out.",
      check_replicas);
  require(
      !straggler_threshold || has_ranks_to_compare(ranks),
      "--straggler-threshold {} compares ranks that do the same work, and of {} ranks with --pp {} none do; leave it out.",
      straggler_threshold.value_or(0), ranks, trainer.mesh[Axis::pipeline]);
}

void CommandLine::check(int ranks, int rank) const {
  require(nproc >= 0, "--nproc {} must be at least 1.", nproc);
  require(check_replicas >= 0, "--check-replicas {} is no number of steps; give 1 or more, or 0 for no comparison.",
          check_replicas);
  require(!straggler_threshold || (*straggler_threshold > 0 && *straggler_threshold <= 1),
          "--straggler-threshold {} is no share of a step; give 0.1.", straggler_threshold.value_or(0));
  check_layout(ranks);
  require(steps >= 0 && warmup >= 0 && save_interval >= 0 && eval_interval >= 0 && sample_interval >= 0 && log_interval >= 1,
          "--train-iters {}, --lr-warmup-iters {}, --save-interval {}, --eval-interval {} and --sample-interval {} cannot "
          "be negative, nor "
          "--log-interval {} below 1.",
          steps, warmup, save_interval, eval_interval, sample_interval, log_interval);
  require(sample.length >= 1 && sample.temperature >= 0 && sample.top_k >= 0 && sample.top_p > 0 && sample.top_p <= 1,
          "--sample-length {} must be at least 1, --temperature {} and --top-k {} at least 0, and --top-p {} above 0 and at "
          "most 1.",
          sample.length, sample.temperature, sample.top_k, sample.top_p);
  require(!sample_only || !load.empty() || !weights.place().empty(),
          "--sample-only prints what a model writes that --load, --load-hf or --load-gguf names; give one.");
  require(lr > 0 && min_lr >= 0 && trainer.clip_norm >= 0,
          "--lr {} must be above 0; --min-lr {} and --clip-grad {} cannot be negative.", lr, min_lr, trainer.clip_norm);
  require(min_lr <= lr, "--min-lr {} is above --lr {}, so that the rate would rise to the end; give at most --lr.", min_lr,
          lr);
  require(warmup <= steps || steps == 0,
          "--lr-warmup-iters {} are more than --train-iters {}, so that --lr {} is never reached; give fewer.", warmup,
          steps, lr);
  require(first_step_timeout == 0 || ranks > 1,
          "--first-step-timeout {} is of waits for other ranks, and {} rank has none; "
          "leave it out.",
          first_step_timeout, ranks);
  require(first_step_timeout >= 0, "--first-step-timeout {} is no time; give seconds, or 0 for STRETTO_TIMEOUT.",
          first_step_timeout);
  const char* const unfit = elastic       ? "--elastic, which makes replicas of equal weights of the ranks that are left"
                            : comm_report ? "--comm-report, whose steps never exchange anything between replicas"
                                          : nullptr;
  require(!trainer.diloco.any() || unfit == nullptr, "--diloco {} does not go with {}; leave one of them out.",
          trainer.diloco.sync_every, unfit == nullptr ? "" : unfit);
  require(!data.train.empty() || (steps == 0 && !comm_report && data.validation.empty()),
          "--train-data names no text to train on; give any file.");
  require(resume == Resume::no || !save.empty(), "--resume needs --save DIR, where the checkpoints are.");
  require(resume != Resume::yes || load.empty(), "--resume goes on from --save {}; leave --load {} out.", save, load);
  require(weights.place().empty() || saves_adapters_only || (load.empty() && resume != Resume::yes),
          "{} {} and {} are two models to begin with; leave one out.", weights.flag(), weights.place(),
          resume == Resume::yes ? "--resume" : "--load " + load);
  check_relayouts(*this, ranks);
  require(max_restarts >= 0, "--max-restarts {} is no number of restarts; give 1 or more, or 0 for none.", max_restarts);
  require(max_restarts == 0 || nproc > 0,
          "--max-restarts {} starts ranks of --nproc again; under a launcher, let it start the job again, and give --resume "
          "auto.",
          max_restarts);
  require(!elastic || !save.empty(), "--elastic goes on from checkpoints; give --save DIR, and --save-interval.");
  require(!replicate_state || elastic, "--replicate-state keeps the state for --elastic; give both.");
  check_rejoin(*this, ranks);
  require(!elastic || device == Device::cpu,
          "--elastic is for --device cpu: links between GPUs cannot lose a rank; give --max-restarts, or leave it out.");
  require(weights.export_hf.empty() || !trainer.mask.sparse(),
          "--export-hf {} would let a model that is trained with sparse --attention attend densely; leave one of them out.",
          weights.export_hf);
  require(weights.save_adapter.empty() || trainer.adapters.any(),
          "--save-adapter {} has no adapter to write; give --lora RANK, or --load-adapter.", weights.save_adapter);
  const bool stores_base = trainer.adapters.base != StoredFormat::plain;
  const char* const base = name(trainer.adapters.base);
  require(!stores_base || save.empty() || saves_adapters_only,
          "--save {} would have to hold the base, of which --base {} keeps no more than it computes with; give the files of "
          "the model instead of a checkpoint, or leave one of them out.",
          save, base);
  require(!stores_base || (!replicate_state && check_replicas == 0),
          "--base {} keeps the base in a form that --replicate-state and --check-replicas do not know; leave one out.",
          base);
  require(!layout.automatic || !stores_base,
          "--layout auto predicts nothing of how --base {} is restored; give the layout, or leave --base out.", base);
  require(save_interval == 0 || !save.empty(), "--save-interval {} needs --save DIR.", save_interval);
  require(!trainer.saves_in_background || !save.empty(), "--async-save needs --save DIR.");
  require(!trainer.saves_in_flight || !save.empty(), "--checkpoint-in-flight needs --save DIR.");
  require(keep >= 0, "--keep {} is no number of checkpoints; give 1 or more, or 0 for all.", keep);
  require(keep == 0 || !save.empty(), "--keep {} needs --save DIR, where the checkpoints are.", keep);
  if (!trace.empty() && rank == 0) Trace::check_writable(trace);
  // Files are opened here as well, so that a missing one is reported once, before there are ranks.
  if (resume == Resume::yes) find_checkpoint(save);
  if (!load.empty()) find_checkpoint(load);
  if (const std::optional<ModelFiles> files = weights.files()) files->check(trainer.model);
  if (!weights.export_hf.empty() && rank == 0) check_hf_export(weights.export_hf, trainer.model);
  if (!weights.save_adapter.empty() && rank == 0) check_adapter_directory(weights.save_adapter);
  require(data.train.empty() || !has_examples(data) || trainer.mask.global == 0,
          "--attention {} lets tokens see the beginning of a sequence, and examples in JSON lines share sequences without "
          "seeing "
          "each other; leave global:{} out.",
          to_text(trainer.mask), trainer.mask.global);
  const std::shared_ptr<const TrainingData> readable = training_data();
  if (readable && rank == 0) readable->check_first_tokens();
  tokenizer(readable);
  if (!log_dir.empty() && rank == 0) make_log_directory(log_dir);
}

}  // namespace apps
