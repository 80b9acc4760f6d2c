#include "apps/train/options/options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "apps/common/fail.hpp"
#include "apps/train/options/adapter_options.hpp"
#include "apps/train/options/data_options.hpp"
#include "apps/train/options/diloco_options.hpp"
#include "apps/train/options/flag_values.hpp"
#include "apps/train/options/foreign_names.hpp"
#include "apps/train/options/number_flags.hpp"
#include "apps/train/options/optimizer_options.hpp"
#include "apps/train/options/pipeline_options.hpp"
#include "apps/train/options/precision_options.hpp"
#include "apps/train/options/sequence_options.hpp"
#include "apps/train/options/server_options.hpp"
#include "apps/train/options/zero_options.hpp"
#include "apps/train/report/report.hpp"
#include "apps/train/run/run_notes.hpp"
#include "apps/train/run/stragglers.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/models/adapter_files.hpp"
#include "stretto/overlap/trace.hpp"

namespace apps {

using namespace stretto;

namespace {

// A checkpoint of adapters is worth nothing with another base.
void check_base(const LoadedCheckpoint& saved, const CommandLine& line, const std::string& checkpoint) {
  const auto base = saved.notes.find(base_note);
  const bool needs_files = base != saved.notes.end() && !base->second.empty();
  require(needs_files || line.weights.place().empty(),
          "{} has adapters of a model from a seed, not of {} {}; leave that out.", checkpoint, line.weights.flag(),
          line.weights.place());
  require(!needs_files || !line.weights.place().empty(),
          "{} has adapters only; give the model that they adapt, with {} as it was trained.", checkpoint, base->second);
  const auto seed = saved.notes.find("--seed");
  require(needs_files || seed == saved.notes.end() || seed->second == fmt::format("{}", line.trainer.seed),
          "{} has adapters of the model from --seed {}; give that.", checkpoint,
          seed == saved.notes.end() ? "" : seed->second);
}

}  // namespace

std::optional<CommandLine> parse_command_line(int argc, char** argv) {
  CommandLine line;
  line.trainer.mesh[Axis::data] = 0;  // follows from the ranks, unless --dp is given
  TrainingOptions& trainer = line.trainer;
  DecoderShape& model = trainer.model;
  bool no_overlap = false;
  std::string device = "cpu", resume;
  CLI::App app(
      "Trains a GPT on the bytes of a text or on tokens, data (ZeRO 0 to 3), tensor, sequence and pipeline parallel.",
      "stretto-train");
  app.set_help_flag("-h,--help", "Print this help");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // later flags override those of a script

  const auto group = [&](const char* name) { app.option_defaults()->group(name); };
  group("Ranks and layout");
  app.add_option("--nproc", line.nproc, "Ranks to start on this host (leave it out under mpirun or torchrun)");
  app.add_option("--tensor-model-parallel-size,--tp", line.trainer.mesh[Axis::tensor], "Ranks that share each layer")
      ->capture_default_str();
  add_sequence_options(app, trainer);
  add_pipeline_options(app, trainer);
  add_layout_options(app, line.layout);
  RelayoutFlags relayouts;
  add_relayout_options(app, relayouts);
  app.add_option("--dp", line.trainer.mesh[Axis::data], "Data-parallel ranks; derived when left out, checked when given");

  app.add_option("--device", device, "cpu, or cuda: each rank on a GPU")->capture_default_str();
  group("Model");
  ModelFlags model_flags;
  add_model_options(app, model_flags);
  group("Adapters");
  AdapterFlags adapters;
  add_adapter_options(app, adapters);
  group("Batch and optimizer");
  app.add_option("--micro-batch-size", trainer.micro_batch, "Sequences that a rank computes at a time")
      ->capture_default_str();
  const CLI::Option* const global_batch =
      app.add_option(
             "--global-batch-size", trainer.global_batch,
             "Sequences of a step, over all ranks; in a dry run, a microbatch of each rank for each stage when left out")
          ->capture_default_str();
  app.add_option("--train-iters", line.steps, "Steps of training")->capture_default_str();
  app.add_option("--lr", line.lr, "Highest learning rate")->capture_default_str();
  const CLI::Option* const min_lr =
      app.add_option("--min-lr", line.min_lr, "Last learning rate of the cosine; a tenth of --lr when left out");
  app.add_option("--lr-warmup-iters", line.warmup, "Steps in which the learning rate rises")->capture_default_str();
  OptimizerFlags optimizer;
  add_optimizer_options(app, optimizer);
  app.add_option("--clip-grad", trainer.clip_norm, "Largest gradient norm; 0 for none")->capture_default_str();
  app.add_flag("--clip-by-step-before", trainer.clips_by_step_before,
               "With --schedule 2bw, clip by the norm of all stages in the step before, instead of that of each stage");
  app.add_option("--seed", trainer.seed, "Seed of initialisation, data order and samples")->capture_default_str();

  group("Types and memory");
  add_precision_options(app, trainer);
  group("ZeRO and overlap");
  add_zero_options(app, trainer);
  app.add_flag("--no-overlap", no_overlap, "Communicate after computing instead of beside it (same result, bit for bit)");
  app.add_flag("--deterministic", line.deterministic, "Sum in the order of the ranks (STRETTO_DETERMINISTIC=1)");

  group("Replicas that agree seldom");
  add_diloco_options(app, trainer.diloco);
  group("Parameter servers");
  add_server_options(app, trainer.servers);

  group("Data");
  add_data_options(app, line.data);
  group("Reports");
  app.add_option("--eval-interval", line.eval_interval, "Steps between validations; at the end when 0")
      ->capture_default_str();
  app.add_option("--sample-interval", line.sample_interval, "Steps between samples; at the end when 0")
      ->capture_default_str();
  app.add_option("--prompt", line.prompt, "Beginning of samples");
  app.add_option("--sample-length", line.sample.length, "Tokens of a sample")->capture_default_str();
  app.add_option("--temperature", line.sample.temperature, "Of samples; 0 takes the likeliest token each time")
      ->capture_default_str();
  app.add_option("--top-k", line.sample.top_k, "Samples choose among the so many likeliest tokens; all when 0")
      ->capture_default_str();
  app.add_option("--top-p", line.sample.top_p, "And among the likeliest whose probabilities reach this sum")
      ->capture_default_str();
  app.add_flag("--sample-only", line.sample_only, "Print a sample of the loaded model, and end");
  group("Checkpoints and models");
  app.add_option("--save", line.save, "Directory for checkpoints");
  app.add_option("--save-interval", line.save_interval, "Steps between checkpoints; at the end when 0")
      ->capture_default_str();
  app.add_flag("--async-save", trainer.saves_in_background, "Write checkpoints in the background, while training goes on");
  app.add_flag("--checkpoint-in-flight", trainer.saves_in_flight,
               "With --schedule 2bw or pipedream, save without emptying the pipeline: older weights are in the checkpoint");
  app.add_option("--keep", line.keep, "Newest checkpoints in --save that stay when one is saved; all when 0")
      ->capture_default_str();
  app.add_option("--load", line.load, "Checkpoint whose weights to begin with");
  add_weight_options(app, line.weights);
  app.add_option("--resume", resume, "Go on from the newest checkpoint in --save; auto: or begin if there is none")
      ->type_name("[auto]")
      ->expected(0, 1);
  app.add_flag("--allow-changes", line.allow_changes,
               "With --resume, go on though --train-data, --seed or --attention are not those of the checkpoint");
  group("Lost, slow and wrong ranks");
  app.add_option("--max-restarts", line.max_restarts,
                 "With --nproc, how often the ranks start again when one is lost, from the newest checkpoint in --save")
      ->capture_default_str();
  app.add_flag("--elastic", line.elastic,
               "When ranks are lost, go on with the replicas that are left, from the newest checkpoint in --save");
  app.add_option("--rejoin", line.rejoin,
                 "With --elastic and --nproc, how often processes start for ranks that are lost, and join behind a step")
      ->capture_default_str();
  app.add_flag("--replicate-state", line.replicate_state,
               "With --elastic, keep the state of each rank in another one's memory after every step, and go on from there");
  group("Reports");
  app.add_option("--log-dir", line.log_dir, "Directory for metrics.jsonl and loss.svg");
  app.add_flag("--comm-report", line.comm_report,
               "At the end, run steps full, computation only, communication only and serial, and print how much "
               "communication is hidden");
  app.add_option("--trace", line.trace, "Write what every rank did when to this file, for Perfetto");
  group("Lost, slow and wrong ranks");
  app.add_option("--check-replicas", line.check_replicas,
                 "Steps between comparisons of the parameters' checksums on all ranks that hold copies; none when 0")
      ->capture_default_str();
  app.add_option("--straggler-threshold", line.straggler_threshold,
                 "Share of the step for which the others wait for one rank, from which on the step line names it")
      ->default_str(fmt::format("{}", Stragglers::usual_threshold));
  app.add_option(
         "--first-step-timeout", line.first_step_timeout,
         "Seconds for which an operation waits for another rank until the first step is over; STRETTO_TIMEOUT when 0")
      ->capture_default_str();
  group("Reports");
  app.add_option("--log-interval", line.log_interval, "Steps between printed lines")->capture_default_str();
  group("Plans without ranks");
  app.add_flag("--dry-run", line.dry_run, "Print the memory and the traffic of a rank by formula, and start no rank");
  app.add_option("--ranks", line.planned_ranks, "With --dry-run, the number of ranks");
  app.add_option("--json", line.json, "With --dry-run, write the figures to this file");

  check_numbers(app);
  if (!parse_flags(app, argc, argv, foreign_names())) return std::nullopt;
  trainer.sharding.overlap = !no_overlap;
  check_precision_options(app, trainer);
  trainer.optimizer = optimizer_of(app, optimizer, line.lr);
  check_zero_options(app, trainer);
  check_diloco_options(app, trainer.diloco);
  line.pipemare_flags = check_pipeline_options(app, line.steps, trainer.pipemare);
  require(app.count("--resume") > 0 || !line.allow_changes, "--allow-changes is for --resume; leave it out.");
  model = model_of(app, model_flags);
  bool takes_sizes = model_flags.model != "gpt2" && model_flags.model != "llama";
  std::string saved;
  const bool resumes = app.count("--resume") > 0 && !line.save.empty() && stretto::has_checkpoint(line.save);
  // Beside a model's files, whether --load may be there is said later, and first.
  const bool loads = !line.load.empty() && (line.weights.place().empty() || has_checkpoint(line.load));
  if (resumes || loads) saved = find_checkpoint(resumes ? line.save : line.load);
  if (const std::optional<ModelFiles> files = line.weights.files()) {
    takes_sizes = true;
    model = saved_model(app, model_flags, files->shape(), line.weights.shape_file(), true);
  } else if (!saved.empty()) {
    takes_sizes = take_saved_model(app, model_flags, saved, model, trainer.mask);
  }
  const LoadedCheckpoint notes = saved.empty() ? LoadedCheckpoint() : read_notes(saved);
  if (line.weights.load_adapter.empty()) take_saved_adapters(app, notes.notes, adapters);
  if (!line.weights.load_adapter.empty()) take_adapter_files(app, line.weights.load_adapter, adapters);
  trainer.adapters = adapters_of(app, adapters);
  line.with = with_adapters(adapters.with);
  require(!trainer.adapters.any() || optimizer.name != "muon",
          "--optimizer muon is for matrices that are trained whole, and --lora {} trains adapters; leave it out.",
          trainer.adapters.rank);
  line.saves_adapters_only = saved.empty() ? trainer.adapters.any() : notes.trained_only;
  trainer.saves_trained_only = line.saves_adapters_only;
  if (notes.trained_only) check_base(notes, line, saved);
  check_data_options(line.data, app.count("--vocab-size") > 0 || takes_sizes, model.vocabulary);
  line.device = stretto::device_from_name(device);
  check_server_options(app, line);
  require(resume.empty() || resume == "auto", "--resume '{}' is unknown; give auto, or nothing.", resume);
  if (app.count("--resume") > 0) line.resume = resume.empty() ? Resume::yes : Resume::if_any;
  trainer.sharding.unit_bytes = trainer.sharding.usual_unit_bytes(line.device);  // also of a dry run, which has no device
  require(line.dry_run || (line.planned_ranks == 0 && line.json.empty()),
          "--ranks and --json describe a dry run; add --dry-run, or start ranks with --nproc.");
  require(line.planned_ranks == 0 || line.nproc == 0,
          "--dry-run is for --ranks {} or for --nproc {} ranks; give one of them.", line.planned_ranks, line.nproc);
  line.default_batch = global_batch->count() == 0;
  check_layout_options(app, line);
  if (min_lr->count() == 0) line.min_lr = line.lr / 10;
  if (!line.layout.automatic || app.count("--cp") > 0) check_sequence_options(app, trainer);
  line.relayouts = relayouts_of(relayouts, trainer);
  require(line.relayouts.empty() || !line.dry_run,
          "{} does not go with --dry-run, which plans one layout; leave one of them out.",
          line.relayouts.empty() ? "" : line.relayouts.front().name());
  line.sample.seed = trainer.seed;
  if (line.sample_only) line.steps = 0;
  line.values = flag_values(app);
  // These may come from another flag, or from a file that it names.
  for (auto& [name, value] : line.values) {
    if (name == "--min-lr") value = fmt::format("{}", line.min_lr);
    if (name == "--attention") value = to_text(trainer.mask);
    if (name == "--model") value = model_note(model);
    const Notes of_adapters = adapter_notes(adapters);
    if (of_adapters.contains(name)) value = of_adapters.at(name);
    if (name == "--rope-theta") value = fmt::format("{}", model.rope_theta);
    for (const auto& [flag, size] : size_flags) {
      if (name == flag) value = fmt::format("{}", model.filled().*size);
    }
  }
  return line;
}

stretto::MeshShape CommandLine::mesh_on(int ranks) const {
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
    flushes = !given || std::ranges::find(stretto::all_window_kinds(), trainer.stages.schedule_name,
                                          &stretto::WindowKind::name) == stretto::all_window_kinds().end();
  } else {
    const stretto::Schedule schedule = trainer.on(mesh_on(ranks)).check();
    stashes = schedule.stashes;
    flushes = !stretto::is_window(schedule);
  }
  require(flushes || (!replicate_state && !comm_report),
          "--schedule {} has no flush between steps, in which --replicate-state and --comm-report have their place; leave "
          "them out.",
          trainer.stages.schedule_name);
  require(!stashes || pipemare_flags.empty(), "{} has no effect without --schedule pipemare; leave it out.", pipemare_flags);
  require(check_replicas == 0 || layout.automatic || trainer.sharding.zero != stretto::ZeroStage::values,
          "--check-replicas {} compares copies, and --zero 3 keeps none; leave one of them out.", check_replicas);
  require(
      check_replicas == 0 || layout.automatic || !mesh_on(ranks).divided(stretto::token_axes).empty(),
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
  require(!elastic || device == stretto::Device::cpu,
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
  if (!trace.empty() && rank == 0) stretto::Trace::check_writable(trace);
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
