#include "stretto/models/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "collectives/job/throw_together.hpp"
#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "layers/note_number.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "stretto/device.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/served_optimizer.hpp"

namespace stretto {

namespace {

constexpr const char* late_lr_note = "late_lr";
constexpr const char* late_loss_scale_note = "late_loss_scale";
constexpr const char* norm_before_note = "norm_before";
constexpr const char* in_flight_note = "schedule_in_flight";

// Blocks until a GPU has computed the losses, so that it is called after all of them have been enqueued.
double sum_of(const std::vector<Decoder::Loss>& losses) {
  double sum = 0;
  for (const Decoder::Loss& each : losses) sum += each.loss();
  return sum;
}

}  // namespace

Trainer::Trainer(const Mesh& mesh, const TrainingOptions& options, const Communicator& peers, ServerSet* servers)
    : mesh_(mesh),
      options_(options.on(mesh.shape())),
      loss_scale_(options.sharding.dtype == DType::f16 ? LossScale(options.loss_scale) : LossScale()) {
  const Schedule schedule = options_.check();
  // A stream of its own: a small sum that the next layer waits for must not queue behind a unit of gradients.
  const bool overlaps = options.sharding.overlap && mesh.size(Axis::tensor) > 1;
  const TensorParallel tensor_parallel = options_.tensor_parallel(mesh, overlaps ? Stream("tp") : computation());
  attention_ =
      std::make_shared<KeptAttention>(options_.attention_mask(), options_.attention(mesh, options.sharding.overlap));
  model_ = std::make_unique<Decoder>(parameters_, options.model, tensor_parallel, options.recompute,
                                     options.cut(schedule, mesh.rank(Axis::pipeline)), attention_, options.adapters);
  if (!options.recompute.directory.empty()) {
    throw_together(mesh.world(), "make its file of activations", [&] { model_->make_files(); });
  }
  // With own rows, the messages of tensor-parallel ranks are not the same.
  pipeline_ = std::make_unique<Pipeline>(
      mesh.over(Axis::pipeline), schedule,
      Pipeline::Options{.overlap = options.sharding.overlap,
                        .tensor = tensor_parallel.has_own_rows() ? Communicator() : mesh.over(Axis::tensor)});
  options_.sharding.seed = options.seed;
  if (auto* const onebit = std::get_if<OneBitAdam::Options>(&options_.optimizer)) {
    onebit->clip_norm = options_.clip_norm;
    options_.sharding.measured_steps = 0;  // after its freeze nothing of units travels that could be postponed
  }
  require(options.servers.any() == (servers != nullptr),
          "Training with {} servers {} a server set; see split_into_servers().", options.servers.count,
          servers != nullptr ? "takes no" : "takes");
  sharded_ = std::make_unique<ShardedParameters>(parameters_, mesh_,
                                                 options_.sharding_of(schedule, mesh.rank(Axis::pipeline)), servers);
  sharded_->initialise(options.seed);
  if (servers != nullptr) {
    optimizer_ = std::make_unique<ServedOptimizer>(*sharded_, kind_of(options_.optimizer));
  } else {
    optimizer_ = make_optimizer(*sharded_, options_.optimizer);
  }
  require(options.diloco.any() == bool(peers), "Training of {} replicas {} peers; see split_into_replicas().",
          options.diloco.replicas, peers ? "takes no" : "takes");
  if (!schedule.stashes) {
    const double discrepancy = discrepancy_of(schedule, mesh.rank(Axis::pipeline));
    pipemare_ = std::make_unique<PipeMare>(*sharded_, *optimizer_, discrepancy, options.pipemare);
  }
  if (options_.sharding.updates_behind()) delayed_ = std::make_unique<DelayedUpdate>(*sharded_, *optimizer_);
  if (options_.sharding.offload.speculates) speculative_ = std::make_unique<SpeculativeUpdate>(*sharded_, *optimizer_);
  if (peers) diloco_ = std::make_unique<DiLoCo>(*sharded_, *optimizer_, peers, options.diloco);
  if (!meets_each_step()) reports_ = mesh.world().duplicate("reports");
  if (!flushes()) return;  // the order of uses is that of no step
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(options_.rank_batch() * options.model.sequence));
  sharded_->learn([&] { run_microbatches({own_tokens(tokens, tokens, options.model.sequence), 1}); });
}

std::vector<Decoder::Loss> Trainer::run_microbatches(const CountedBatch& slots) {
  Microbatches microbatches(*model_, *sharded_, slots.batch, options_.micro_batch,
                            loss_scale_.value() / static_cast<double>(slots.counted), [&] { sharded_->end_microbatch(); });
  pipeline_->run(microbatches, model_->message(options_.micro_batch * slots.batch.length), options_.sharding.dtype);
  return microbatches.losses();
}

StepResult Trainer::step(const FillSlot& fill, double lr) {
  if (diloco_) diloco_->begin_step();
  const double its = is_late() ? std::exchange(late_.lr, lr) : lr;
  StepResult result = compute_step(fill, its);
  apply(result, its);
  return result;
}

// Whether a step's gradients are applied by the next one.
bool Trainer::is_late() const {
  return options_.sharding.delay > 0 && (sharded_->has_late() || optimizer_->steps() >= options_.delay_from);
}

StepResult Trainer::finish() {
  StepResult result{.arrived = sharded_->has_late()};
  if (result.arrived) {
    kept_.clear();  // an update changes keys and values
    sharded_->take_late();
    result.loss_scale = late_.loss_scale;
    result.gradient_norm = gradient_norm(*sharded_) / result.loss_scale;
  }
  apply(result, late_.lr);
  return result;
}

// All ranks decide alike, since they have the same norm.
void Trainer::apply(StepResult& result, double lr) {
  result.updated = false;
  if (!result.arrived) return;
  const double scale = gradient_scale(result.gradient_norm, result.loss_scale);
  if (diloco_) average_over_replicas(result);  // so that all replicas update, or none
  result.updated = loss_scale_.update(result.gradient_norm);
  adapt_errors(result);
  bool behind = std::exchange(runs_behind_, false);
  if (behind && speculative_ && !(result.updated && scale == 1 / result.loss_scale)) {
    speculative_->take_back();
    behind = false;
  }
  if (result.updated) {
    if (!behind) {
      optimizer_->step(lr, scale);
    } else if (speculative_) {
      speculative_->keep();
    } else {
      delayed_->show();
    }
  }
  if (result.updated && diloco_) diloco_->end_step();
}

double Trainer::gradient_scale(double norm, double loss_scale) const {
  const bool clips = optimizer_->clips_gradients() && options_.clip_norm > 0 && norm > options_.clip_norm;
  return (clips ? options_.clip_norm / norm : 1.0) / loss_scale;
}

void Trainer::average_over_replicas(StepResult& result) const {
  double both[2] = {result.loss, result.gradient_norm};
  diloco_->peers()
      .all_reduce(both, both, 2, DType::f64, ReduceOp::avg, Stream::inline_(), {.tag = "loss of replicas"})
      .wait();
  result.loss = both[0];
  result.gradient_norm = both[1];
}

void Trainer::rehearse(const FillSlot& fill) {
  compute_gradients(fill);
  optimizer_->step(0, 1);
}

// The errors of gradients are kept at the scale of the gradients. After an overflow those of quantized sums are no numbers.
void Trainer::adapt_errors(const StepResult& result) {
  const bool is_quantized = options_.sharding.qgz != QuantizedFormat::none;
  if (!is_quantized && !options_.sharding.powersgd.any()) return;  // an optimizer's, if any, are not at that scale
  ErrorFeedback& errors = sharded_->errors();
  if (is_quantized && !result.updated) return errors.clear();
  if (loss_scale_.value() == result.loss_scale) return;
  for (const ErrorFeedback::Entry& entry : errors.entries()) {
    if (PowerSGD::is_factor(entry.tensor)) continue;
    kernels::scale(entry.values, loss_scale_.value() / result.loss_scale);
  }
}

std::int64_t Trainer::first_slot() const {
  return (diloco_ ? diloco_->peers().rank() * options_.replica_batch() : 0) +
         mesh_.rank(sequence_axes) * options_.rank_batch();
}

Trainer::CountedBatch Trainer::slots_of_step(const FillSlot& fill, std::int64_t step) const {
  CountedBatch batch = batch_of(fill, {options_.rank_batch(), options_.rank_batch(), options_.replica_batch()},
                                [first = first_slot()](std::int64_t i) { return first + i; });
  if (options_.adapters.dropout > 0) batch.batch.draws = draws_of(step);
  return batch;
}

StepResult Trainer::compute_gradients(const FillSlot& fill) { return compute_step(fill, {}); }

StepResult Trainer::compute_step(const FillSlot& fill, std::optional<double> lr) {
  require(flushes(), "Schedule {} runs steps without a flush between them; run several.", pipeline_->schedule().name);
  require(meets_each_step(), "Workers of {} servers do not meet in each step; run several.", options_.servers.count);
  kept_.clear();  // an update changes keys and values
  const bool late = is_late();
  StepResult result;
  const CountedBatch batch = slots_of_step(fill, optimizer_->steps() + (sharded_->has_late() ? 1 : 0));
  sharded_->begin_step();
  runs_behind_ = lr && (speculative_ || (delayed_ && sharded_->sums_arrived()));
  if (runs_behind_ && speculative_) {
    speculative_->begin(*lr, 1 / loss_scale_.value());
  } else if (runs_behind_) {
    delayed_->begin(*lr, [this, loss_scale = late_.loss_scale](double norm) -> std::optional<double> {
      if (!std::isfinite(norm / loss_scale)) return {};  // what apply() leaves out
      return gradient_scale(norm / loss_scale, loss_scale);
    });
  }
  const std::vector<Decoder::Loss> losses = run_microbatches(batch);
  sharded_->finish_sums();
  if (options_.sharding.delay > 0 && !late) sharded_->take_late();
  const double scale = loss_scale_.value();
  result.loss_scale = late ? std::exchange(late_.loss_scale, scale) : scale;
  result.arrived = sharded_->sums_arrived();
  // Blocks until a GPU is done, so that the loss is there as well.
  if (result.arrived) {
    result.gradient_norm = (runs_behind_ && delayed_ ? delayed_->finish() : gradient_norm(*sharded_)) / result.loss_scale;
  }
  result.loss = sum_over_tokens(sum_of(losses)) / static_cast<double>(batch.counted);
  return result;
}

std::map<std::string, std::string> Trainer::notes() const {
  std::map<std::string, std::string> notes;
  if (options_.sharding.dtype == DType::f16) notes = loss_scale_.notes();
  if (norm_before_) notes[norm_before_note] = fmt::format("{}", *norm_before_);
  if (sharded_->in_flight()) notes[in_flight_note] = pipeline_->schedule().name;
  if (!sharded_->has_late()) return notes;
  notes[late_lr_note] = fmt::format("{}", late_.lr);
  notes[late_loss_scale_note] = fmt::format("{}", late_.loss_scale);
  return notes;
}

void Trainer::check_notes(const std::map<std::string, std::string>& notes) const {
  const auto saved = notes.find(in_flight_note);
  if (!sharded_->in_flight() || saved == notes.end()) return;
  const std::string& now = pipeline_->schedule().name;
  require(saved->second == now,
          "The checkpoint was saved with microbatches of schedule {} under way, and {} reads other versions; train on with "
          "{}, or load the values alone.",
          saved->second, now, saved->second);
}

void Trainer::restore(const std::map<std::string, std::string>& notes) {
  check_notes(notes);
  loss_scale_.restore(notes);
  norm_before_.reset();
  if (options_.clips_by_step_before && notes.contains(norm_before_note)) {
    norm_before_ = number_of(notes, norm_before_note, std::nan(""));
  }
  for (const std::size_t unit : sharded_->in_flight() ? sharded_->update_order() : std::vector<std::size_t>()) {
    for (int age = 1; age < sharded_->options().versions; ++age) sharded_->share_older_values(unit, age);
  }
  if (!sharded_->has_late()) return;
  require(
      optimizer_->steps() >= options_.delay_from,
      "The checkpoint has gradients that come one step late, behind {} updates, and the delay is to begin behind {}; let "
      "it begin behind at most {}.",
      optimizer_->steps(), options_.delay_from, optimizer_->steps());
  late_.lr = number_of(notes, late_lr_note, std::nan(""));
  late_.loss_scale = number_of(notes, late_loss_scale_note, std::nan(""));
  if (std::isfinite(late_.lr) && late_.loss_scale > 0 && std::isfinite(late_.loss_scale)) return;
  fail(ErrorCode::io,
       "A checkpoint with gradients of its last step says that their learning rate is {} and their loss scale {}, which "
       "cannot be; load an earlier one, or its values alone.",
       late_.lr, late_.loss_scale);
}

// Ranks that have a slot less than others compute their last one again, because they must make the same uses.
double Trainer::evaluate(const FillSlot& fill, std::int64_t count) {
  const std::int64_t rank = mesh_.rank(sequence_axes);
  const std::int64_t ranks = mesh_.size(sequence_axes);
  const std::int64_t rounds = (count + ranks - 1) / ranks;
  const auto slot_of = [&](std::int64_t i) { return std::min(rank + i * ranks, count - 1); };
  const bool repeats = rank + (rounds - 1) * ranks >= count;
  const CountedBatch slots = batch_of(fill, {rounds, repeats ? rounds - 1 : rounds, count}, slot_of);
  const Batch& batch = slots.batch;
  Microbatches sequences(*model_, *sharded_, batch, 1, std::nullopt);
  pipeline_->run_forward(sequences, static_cast<int>(rounds), model_->message(batch.length), options_.sharding.dtype);
  std::vector<Decoder::Loss> losses = sequences.losses();
  if (!losses.empty() && repeats) losses.pop_back();
  return sum_over_tokens(sum_of(losses)) / static_cast<double>(slots.counted);
}

void Trainer::weigh_adapters(const AdapterWeights& weights) {
  model_->weigh_adapters(weights);
  kept_.clear();
}

Tensor Trainer::next_logits(const std::vector<std::int32_t>& tokens) {
  if (mesh_.size(Axis::ring) * mesh_.size(Axis::ulysses) > 1) return divided_logits(tokens);
  const bool grows = kept_.size() < tokens.size() && std::equal(kept_.begin(), kept_.end(), tokens.begin());
  const Tensor logits = grown_logits(tokens, grows ? static_cast<std::int64_t>(kept_.size()) : 0);
  kept_ = tokens;
  return logits ? whole_row(logits, logits.rows() - 1) : Tensor();
}

Tensor Trainer::grown_logits(const std::vector<std::int32_t>& tokens, std::int64_t first) {
  const std::vector<std::int32_t> added(tokens.begin() + first, tokens.end());
  std::vector<std::int64_t> positions(added.size());
  std::iota(positions.begin(), positions.end(), first);
  attention_->start(first, options_.model.sequence);
  Tensor result = logits(Batch::of(added, {}, positions));
  attention_->stop();
  return result;
}

Tensor Trainer::divided_logits(const std::vector<std::int32_t>& tokens) {
  // Behind the last token, which sees none of them, zeros make the sequence as long as it must be to divide.
  const SequenceDivision division = options_.division();
  const std::int64_t multiple = division.multiple();
  const auto last = static_cast<std::int64_t>(tokens.size()) - 1;
  std::vector<std::int32_t> padded = tokens;
  padded.resize(static_cast<std::size_t>((last + multiple) / multiple * multiple));
  const auto length = static_cast<std::int64_t>(padded.size());
  const Tensor logits = this->logits(own_tokens(padded, {}, length));
  if (!logits) return {};
  const std::vector<std::int64_t> positions = division.positions(length, mesh_.rank(Axis::ring), mesh_.rank(Axis::ulysses));
  const auto found = std::ranges::find(positions, last);
  if (found == positions.end()) return whole_row(logits, std::nullopt);
  return whole_row(logits, found - positions.begin());
}

// Each rank puts its columns into a row of zeros, if it has the token; the sum is the whole row.
Tensor Trainer::whole_row(const Tensor& logits, std::optional<std::int64_t> position) const {
  Tensor row({options_.model.vocabulary}, DType::f64, Device::cpu);
  row.zero();
  if (position) {
    const Tensor own = logits.view(*position * logits.columns(), {logits.columns()}).on(Device::cpu);
    for (std::int64_t c = 0; c < own.size(); ++c) row.set(model_->first_column() + c, own.at(c));
  }
  for (const Axis axis : {Axis::tensor, Axis::ulysses, Axis::ring}) {
    mesh_.over(axis).all_reduce(row, ReduceOp::sum, Stream::inline_(), {.tag = "sampling"}).wait();
  }
  return row;
}

Tensor Trainer::logits(const Batch& sequences) {
  Microbatches one(*model_, *sharded_, sequences, sequences.sequences, std::nullopt);
  pipeline_->run_forward(one, 1, model_->message(sequences.sequences * sequences.length), options_.sharding.dtype);
  return one.logits();
}

Trainer::CountedBatch Trainer::batch_of(const FillSlot& fill, const SlotCounts& slots,
                                        const std::function<std::int64_t(std::int64_t)>& slot_of) const {
  const auto sequence = static_cast<std::size_t>(options_.model.sequence);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(slots.count) * sequence);
  std::vector<std::int32_t> targets(tokens.size()), starts(fill.has_documents() ? tokens.size() : 0);
  for (std::int64_t i = 0; i < slots.count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * sequence;
    fill(slot_of(i), &tokens[at], &targets[at], starts.empty() ? nullptr : &starts[at]);
  }
  const std::span<const std::int32_t> of_rank(targets.data(), static_cast<std::size_t>(slots.own) * sequence);
  const std::int64_t own = std::ranges::count_if(of_rank, [](std::int32_t target) { return target >= 0; });
  std::int64_t counted = own;
  if (!fill.has_documents()) {
    require(own == std::ssize(of_rank),
            "{} of {} targets are below 0, as only a FillSlot with starts may have them; give it these.",
            std::ssize(of_rank) - own, of_rank.size());
    counted = slots.all * options_.model.sequence;
  } else if (mesh_.size(sequence_axes) > 1) {  // the other axes' ranks have filled the same slots
    mesh_.over(sequence_axes)
        .all_reduce(&own, &counted, 1, DType::i64, ReduceOp::sum, Stream::inline_(), {.tag = "counted tokens"})
        .wait();
  }
  require(counted > 0, "No token of {} sequences counts, so that they have no mean loss; leave out sequences without one.",
          slots.all);
  return {own_tokens(tokens, targets, options_.model.sequence, starts), counted};
}

Batch Trainer::own_tokens(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                          std::int64_t length, const std::vector<std::int32_t>& starts) const {
  const std::vector<std::int64_t> positions =
      options_.division().positions(length, mesh_.rank(Axis::ring), mesh_.rank(Axis::ulysses));
  std::vector<std::int32_t> own, own_targets;
  const auto sequences = static_cast<std::int64_t>(tokens.size()) / length;
  for (std::int64_t i = 0; i < sequences; ++i) {
    for (const std::int64_t position : positions) {
      const auto at = static_cast<std::size_t>(i * length + position);
      own.push_back(tokens[at]);
      if (!targets.empty()) own_targets.push_back(targets[at]);
    }
  }
  Batch batch = Batch::of(own, own_targets, positions);
  if (!starts.empty()) keep_documents_apart(starts, length, batch);
  return batch;
}

Tensor Trainer::draws_of(std::int64_t step) const {
  const MemoryScope activations(MemoryKind::activations);
  const std::vector<std::int64_t> positions =
      options_.division().positions(options_.model.sequence, mesh_.rank(Axis::ring), mesh_.rank(Axis::ulysses));
  const auto next = [](std::uint64_t state, std::int64_t number) {
    return split_mixed(state + (static_cast<std::uint64_t>(number) + 1) * split_mix_step);
  };
  const std::uint64_t of_step = next(split_mixed(options_.seed), step);
  std::vector<std::int64_t> draws;
  for (std::int64_t i = 0; i < options_.rank_batch(); ++i) {
    const std::uint64_t of_slot = next(of_step, first_slot() + i);
    for (const std::int64_t position : positions) draws.push_back(static_cast<std::int64_t>(next(of_slot, position)));
  }
  return Tensor::of(draws);
}

void Trainer::keep_documents_apart(const std::vector<std::int32_t>& starts, std::int64_t length, Batch& batch) const {
  const MemoryScope activations(MemoryKind::activations);
  const SequenceDivision division = options_.division();
  std::vector<std::int32_t> attended, in_documents;
  for (std::int64_t i = 0; i < batch.sequences; ++i) {
    for (int ulysses = 0; ulysses < division.ulysses; ++ulysses) {
      for (const std::int64_t position : division.positions(length, mesh_.rank(Axis::ring), ulysses)) {
        const std::int32_t start = starts[static_cast<std::size_t>(i * length + position)];
        require(start >= 0 && start <= position, "The document of token {} begins at {}, which is not at it or before it.",
                position, start);
        attended.push_back(start);
        if (ulysses == mesh_.rank(Axis::ulysses)) in_documents.push_back(static_cast<std::int32_t>(position) - start);
      }
    }
  }
  batch.positions = Tensor::of(in_documents);
  batch.starts = Tensor::of(attended);
}

double Trainer::sum_over_tokens(double value) const {
  for (const Axes axes : {token_axes, Axes(Axis::pipeline)}) {
    const Communicator& group = mesh_.over(axes);
    if (group.size() == 1) continue;
    group.all_reduce(&value, &value, 1, DType::f64, ReduceOp::sum, Stream::inline_(), {.tag = "loss"}).wait();
  }
  return value;
}

}  // namespace stretto
