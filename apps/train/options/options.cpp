#include "apps/train/options/options.hpp"

#include <CLI/CLI.hpp>

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
#include "apps/train/run/run_notes.hpp"
#include "apps/train/run/stragglers.hpp"
#include "stretto/layers/checkpoint.hpp"

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
  const bool resumes = app.count("--resume") > 0 && !line.save.empty() && has_checkpoint(line.save);
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
  line.device = device_from_name(device);
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

}  // namespace apps
