#include "stretto/models/training_options.hpp"

#include <algorithm>
#include <utility>

#include "core/fail.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/speculative_update.hpp"
#include "stretto/models/decoder.hpp"
#include "stretto/models/decoder_cost.hpp"

namespace stretto {

namespace {

constexpr std::int64_t most_layers = 100000;
constexpr double most_parameters = 1e15, most_tokens = 1e15;

// Of a schedule without a flush.
void check_window(const TrainingOptions& options, const Schedule& schedule) {
  // The joint kind of a schedule is the library's choice; a caller knows the one that he has named.
  const std::string& named = schedule.name == options.schedule_name() ? options.stages.schedule_name : schedule.name;
  require(schedule.chunks == 1, "Schedule {} has {} chunks a stage and no flush; give it 1.", schedule.name,
          schedule.chunks);
  require(options.sharding.zero <= ZeroStage::optimizer,
          "Schedule {} keeps versions of the weights, which ZeRO stage {} divides; choose stage 0 or 1.", named,
          static_cast<int>(options.sharding.zero));
  const bool jointly = updates_jointly(schedule);
  require(
      jointly || schedule.stages == 1 || !options.model.tied,
      "The first and the last stage share the table of a tied model, and would wait for each other's gradients before each "
      "update of {}; untie it, or choose 2bw.",
      schedule.name);
  require(
      jointly || options.sharding.dtype != DType::f16,
      "The loss scale of fp16 is one of all stages, which do not wait for each other under {}; train in bf16 or fp32, or "
      "choose 2bw.",
      schedule.name);
  require(!jointly || schedule.stages == 1 || (options.sharding.overlap && current_device() == Device::cpu),
          "Sums of all stages travel while they compute under {}, which needs overlap on a host; choose a schedule with a "
          "flush.",
          named);
  require(!jointly || schedule.steps == 1, "Schedule {} sums {} steps in a window, whose stages update together; give it 1.",
          schedule.name, schedule.steps);
  // Of the named one, all stages have made the same updates when they begin a step, and so take the same loss scale.
  require(!jointly || options.sharding.dtype != DType::f16 || options.schedule_name() == "2bw-joint",
          "fp16 needs one loss scale of all stages at a step's beginning, which is not proved of {}; choose 2bw.",
          options.stages.schedule_name);
  require(options.sharding.delay == 0, "Schedule {} reads weights that lack updates already; leave the delay of {} out.",
          named, options.sharding.delay);
  require(!options.diloco.any(),
          "{} replicas agree between steps, which schedule {} does not end together; choose a schedule with a flush.",
          options.diloco.replicas, named);
}

void check_tiles(const TrainingOptions& options) {
  const int tiles = options.tiles;
  require(tiles >= 1, "Linear layers cannot be cut into {} tiles; give 1 or more.", tiles);
  if (tiles == 1) return;
  const ShardedParameters::Options& sharding = options.sharding;
  const bool is_divided = sharding.zero == ZeroStage::values;
  require(
      is_divided || options.adapters.base != StoredFormat::plain,
      "At ZeRO stage {} the values of linear layers are always there, whole, and {} tiles would save nothing; give stage 3, "
      "or leave tiles out.",
      static_cast<int>(sharding.zero), tiles);
  require(
      !is_divided || !keeps_through_step(options.mesh, sharding),
      "In a pipeline of {} stages at ZeRO stage 3 the values of all layers stay through a step, also those of {} tiles; let "
      "values lie in files, or leave tiles out.",
      options.mesh[Axis::pipeline], tiles);
  require(!options.divides_rows,
          "Sequence parallelism sends rows while a whole weight is multiplied, not one of {} tiles; leave one of them out.",
          tiles);
  require(options.adapters.any() || !kind_of(options.optimizer).whole_matrices,
          "{} updates whole matrices, not {} tiles of each; leave one of them out.", kind_of(options.optimizer).name, tiles);
  const DecoderShape model = options.model.filled();
  const int tensor = options.mesh[Axis::tensor];
  require(
      model.kv_heads % tensor == 0,
      "{} tensor-parallel ranks share {} heads of keys and values, whose copies have no tiles; give fewer ranks, or leave "
      "{} tiles out.",
      tensor, model.kv_heads, tiles);
  for (const auto& [what, outputs] : {std::pair{"keys", model.kv_heads * model.head_size / tensor},
                                      std::pair{"blocks", model.hidden}, std::pair{"MLPs", model.mlp_width / tensor}}) {
    require(outputs % tiles == 0, "The {} outputs of {} on a rank do not divide into {} tiles; give a divisor.", outputs,
            what, tiles);
  }
}

// With parameter servers. What nobody has, such as the norm of a sum that lies at several servers, is refused.
void check_servers(const TrainingOptions& options, const Schedule& schedule) {
  const int count = options.servers.count;
  require(count >= 0 && options.servers.consistency.delay >= 0 && options.servers.part_elements > 0,
          "{} servers with a delay of {} and parts of {} elements cannot be; give numbers from 0 on, and parts from 1 on.",
          count, options.servers.consistency.delay, options.servers.part_elements);
  if (!options.servers.any()) return;
  require(0 <= options.servers.copies && options.servers.copies < count,
          "{} servers cannot keep {} copies of what each has; give from 0 to {}.", count, options.servers.copies, count - 1);
  require(options.mesh.ranks() == options.mesh[Axis::data],
          "{} servers serve workers that each have the whole model, and this mesh divides it over {} ranks; leave the "
          "tensor, sequence and pipeline axes at 1.",
          count, options.mesh.ranks() / options.mesh[Axis::data]);
  require(!is_window(schedule), "Schedule {} updates inside its windows, and servers update; choose one with a flush.",
          schedule.name);
  require(
      options.clip_norm == 0,
      "Gradients cannot be clipped to a norm of {}: their sum lies at {} servers, none of which knows the norm of all of "
      "it; give 0.",
      options.clip_norm, count);
  require(
      std::holds_alternative<AdamW::Options>(options.optimizer) || std::holds_alternative<SGD::Options>(options.optimizer),
      "Servers update by AdamW or SGD, and {} needs more than each part's own gradients; choose one of them.",
      kind_of(options.optimizer).name);
  if (const auto* const sgd = std::get_if<SGD::Options>(&options.optimizer)) sgd->check();
  require((options.sharding.dtype == DType::f32 || options.sharding.dtype == DType::f64) &&
              options.sharding.gradients() == options.sharding.dtype,
          "Servers hold values in fp32 or fp64, not in {}; train in one of these.", training_name(options.sharding.dtype));
  require(options.sharding.zero <= ZeroStage::optimizer && options.sharding.delay == 0 && !options.sharding.offload.any(),
          "The optimizer's state lies at {} servers, and workers have the values and gradients whole; leave ZeRO stage {}, "
          "a delay of {} and the offload out.",
          count, static_cast<int>(options.sharding.zero), options.sharding.delay);
  require(!options.adapters.any() && !options.diloco.any(),
          "{} servers hold all values of one model; leave adapters and replicas that agree seldom out.", count);
  require(current_device() == Device::cpu, "{} servers are for training on the host; leave the GPU out.", count);
}

}  // namespace

Schedule TrainingOptions::check() const {
  check_sizes();
  StageDivision division = stages;
  division.schedule_name = schedule_name();
  Schedule schedule = division.schedule(mesh[Axis::pipeline], microbatches());
  require(
      kind_of(optimizer).sums_gradients() || (sharding.delay == 0 && !is_window(schedule) && !diloco.any()),
      "{} exchanges its momentum behind each step's gradients; leave delays, replicas and schedules without a flush out.",
      std::holds_alternative<OneBitAdam::Options>(optimizer) ? "1-bit Adam" : "DeMo");
  const char* const unfit = diloco.any()          ? "replicas sum none between them"
                            : servers.any()       ? "servers sum what workers push"
                            : is_window(schedule) ? "a schedule without a flush has sums of several steps under way"
                            : current_device() != Device::cpu ? "a GPU's do not lie in host memory"
                                                              : nullptr;
  require(!sharding.powersgd.any() || unfit == nullptr,
          "PowerSGD of rank {} is for gradients that ranks sum in each step on the host, and {}; leave one of them out.",
          sharding.powersgd.rank, unfit == nullptr ? "" : unfit);
  require(!diloco.any() || sharding.delay == 0,
          "{} replicas count updates, and a delay of {} leaves the first step without one; leave one of them out.",
          diloco.replicas, sharding.delay);
  require(!sharding.offload.speculates ||
              (!is_window(schedule) && !diloco.any() && SpeculativeUpdate::can_update(kind_of(optimizer))),
          "Updates that begin before the norm is known are those of adamw and sgd, of one replica and a schedule with a "
          "flush; leave speculation out of {} under {}.",
          kind_of(optimizer).name, diloco.any() ? fmt::format("{} replicas", diloco.replicas) : schedule.name);
  const ModelCut first = cut(schedule, 0);  // throws if layers and stages do not fit
  if (diloco.any() && diloco.fragments > 1) {
    Parameters records;
    const Decoder decoder(records, model, tensor_parallel(), recompute, first, std::make_shared<LocalAttention>(), adapters);
    fragments_of(records, diloco.fragments);  // throws if one would be empty
  }
  check_servers(*this, schedule);
  if (is_window(schedule)) check_window(*this, schedule);
  require(
      !clips_by_step_before || (is_window(schedule) && !updates_jointly(schedule) && schedule.steps == 1 && clip_norm > 0),
      "Clipping by the norm of the step before is for 2bw with a largest norm above 0, and schedule {} {}; leave it out.",
      schedule.name,
      !is_window(schedule) || updates_jointly(schedule) ? "knows the norm of a step's own gradients"
      : schedule.steps > 1                              ? "updates after each microbatch"
                                                        : "has one of 0");
  require(!saves_in_flight || (is_window(schedule) && schedule.stashes && !updates_jointly(schedule) && sharding.overlap),
          "Checkpoints in flight are for 2bw and pipedream, and schedule {} {}; let a checkpoint empty the pipeline.",
          schedule.name,
          !is_window(schedule)        ? "empties the pipeline behind each step"
          : !schedule.stashes         ? "keeps no older weights to go on with"
          : updates_jointly(schedule) ? "has the gradients of a whole step under way at each update"
                                      : "without overlap lets a stage wait for messages of one that saves");
  return schedule;
}

double discrepancy_of(const Schedule& schedule, int stage) {
  const MeanDelay delay = mean_delay(schedule, stage);
  return delay.forward - delay.backward;
}

int versions_of(const Schedule& schedule, int stage) {
  if (!is_window(schedule)) return 0;
  if (!schedule.stashes) return discrepancy_of(schedule, stage) > 0 ? 2 : 1;  // with the corrected one
  return simulate(schedule).versions[static_cast<std::size_t>(stage)];
}

std::string TrainingOptions::schedule_name() const {
  const bool agree = sharding.dtype == DType::f16 || (model.tied && mesh[Axis::pipeline] > 1);
  return agree && stages.schedule_name == "2bw" ? "2bw-joint" : stages.schedule_name;
}

ShardedParameters::Options TrainingOptions::sharding_of(const Schedule& schedule, int stage) const {
  return sharding_with(schedule, versions_of(schedule, stage));
}

ShardedParameters::Options TrainingOptions::sharding_with(const Schedule& schedule, int versions) const {
  ShardedParameters::Options result = sharding;
  result.versions = versions;
  result.saves_versions = saves_in_flight;
  if (updates_jointly(schedule)) result.delay = 1;
  return result;
}

void TrainingOptions::check_sizes() const {
  require(
      model.layers >= 1 && model.hidden >= 1 && model.heads >= 1 && model.sequence >= 1 && model.vocabulary >= 1,
      "A model of {} layers, hidden size {}, {} heads, sequence length {} and vocabulary {} is impossible; all must be at "
      "least 1.",
      model.layers, model.hidden, model.heads, model.sequence, model.vocabulary);
  // Beyond these no product of sizes fits 64 bits, and their parameters' records alone fill a memory.
  const auto number = [](std::int64_t of) { return static_cast<double>(of); };
  double parameters =
      number(model.hidden) * std::max({number(model.vocabulary), number(model.sequence), number(model.mlp_width),
                                       4 * number(model.hidden), number(model.heads) * number(model.head_size)});
  if (parameters <= most_parameters) parameters = decoder_cost(model, {}, {}, {}).parameters(model.layers, true, true);
  require(
      model.layers <= most_layers && parameters <= most_parameters,
      "A model of {} layers, hidden size {}, sequence length {} and vocabulary {} has {:.2g} parameters; at most {} layers "
      "and {:.0g} parameters can be trained.",
      model.layers, model.hidden, model.sequence, model.vocabulary, parameters, most_layers, most_parameters);
  require(static_cast<double>(global_batch) * static_cast<double>(model.sequence) <= most_tokens,
          "A global batch of {} sequences of {} tokens has more than {:.0g} tokens; give less.", global_batch,
          model.sequence, most_tokens);
  diloco.check();
  require(!diloco.any() || global_batch % diloco.replicas == 0,
          "A global batch of {} does not divide into {} replicas; give a multiple.", global_batch, diloco.replicas);
  require(micro_batch >= 1 && global_batch >= 1 && replica_batch() % micro_batch == 0 &&
              replica_batch() / micro_batch % mesh.ranks_over(sequence_axes) == 0,
          "A global batch of {} does not divide into microbatches of {} on {} data-parallel ranks{}.", global_batch,
          micro_batch, mesh.ranks_over(sequence_axes),
          diloco.any() ? fmt::format(" of each of {} replicas", diloco.replicas) : "");
  require(diloco.format == QuantizedFormat::none || sharding.dtype == DType::f32 || sharding.dtype == DType::bf16,
          "Changes of {} weights do not travel in {}: formats are of f32 and bf16, and fp16's loss scale would change their "
          "errors; give no format, or another type.",
          training_name(sharding.dtype), name(diloco.format));
  model.filled().check_block(mesh[Axis::tensor], mesh[Axis::ulysses]);
  division().check(model.sequence);
  adapters.check(model.filled());
  if (adapters.any()) decoder_cost(model, {}, {}, {}, adapters);  // looks for the modules to save
  require(model.window == 0 || !mask.sparse(),
          "The model has a window of {} tokens, and attention under {} has not; leave the mask dense.", model.window,
          to_text(mask));
  sharding.check(mesh);
  if (const auto* const onebit = std::get_if<OneBitAdam::Options>(&optimizer)) onebit->check(sharding);
  if (const auto* const demo = std::get_if<DeMo::Options>(&optimizer)) demo->check(sharding);
  if (const auto* const muon = std::get_if<Muon::Options>(&optimizer)) muon->check(sharding.dtype);
  require(delay_from >= 0, "A delay cannot begin behind {} updates; give 0 or more.", delay_from);
  require(delay_from == 0 || sharding.delay > 0,
          "The delay is to begin behind {} updates, and there is none; give a delay of 1, or let it begin at once.",
          delay_from);
  loss_scale.check();
  pipemare.check();
  require(!divides_rows || mesh[Axis::tensor] > 1,
          "Sequence parallelism divides rows over the ranks of a tensor-parallel group, and this group has 1; give it more "
          "ranks, or leave rows whole.");
  require(!keeps_gathered || divides_rows,
          "Gathered rows can be kept only where sequence parallelism divides rows; divide them, or keep nothing.");
  check_tiles(*this);
  recompute.check(tensor_parallel());
}

OptimizerKind TrainingOptions::optimizer_kind(const Schedule& schedule) const {
  OptimizerKind kind = kind_of(optimizer);
  for (const std::vector<StateSlot>& more :
       {diloco.slots(), schedule.stashes ? std::vector<StateSlot>() : pipemare.slots()}) {
    kind.slots.insert(kind.slots.end(), more.begin(), more.end());
  }
  return kind;
}

TrainingOptions TrainingOptions::on(const MeshShape& other) const {
  TrainingOptions result = *this;
  result.mesh = other;
  return result;
}

TensorParallel TrainingOptions::tensor_parallel() const {
  return {
      .planned_ranks = mesh[Axis::tensor], .divides_rows = divides_rows, .keeps_gathered = keeps_gathered, .tiles = tiles};
}

TensorParallel TrainingOptions::tensor_parallel(const Mesh& groups, const Stream& stream) const {
  TensorParallel result = tensor_parallel();
  result.group = groups.over(Axis::tensor);
  result.stream = stream;
  return result;
}

std::shared_ptr<const AttentionCore> TrainingOptions::attention(const Mesh& groups, bool overlap) const {
  std::shared_ptr<const AttentionCore> core;
  if (groups.size(Axis::ring) > 1) {
    core = std::make_shared<RingAttention>(groups.over(Axis::ring), division(), attention_mask(), overlap);
  } else {
    core = std::make_shared<LocalAttention>(attention_mask());
  }
  if (groups.size(Axis::ulysses) == 1) return core;
  return std::make_shared<UlyssesAttention>(groups.over(Axis::ulysses), core, overlap ? Stream("ulysses") : computation());
}

kernels::AttentionMask TrainingOptions::attention_mask() const {
  return model.window > 0 && model.window < model.sequence ? kernels::AttentionMask{.window = model.window} : mask;
}

}  // namespace stretto
