#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "stretto/layers/delayed_update.hpp"
#include "stretto/layers/diloco.hpp"
#include "stretto/layers/kept_attention.hpp"
#include "stretto/layers/loss_scale.hpp"
#include "stretto/layers/optimizer.hpp"
#include "stretto/layers/pipemare.hpp"
#include "stretto/layers/speculative_update.hpp"
#include "stretto/models/fill_slot.hpp"
#include "stretto/models/microbatches.hpp"
#include "stretto/models/training_options.hpp"

namespace stretto {

// With a delay (ShardedParameters::Options::delay), the loss is that of the step's own batch, and all else is of the
// gradients that the step applied: those of the step before. Steps before TrainingOptions::delay_from have results as
// without a delay.
struct StepResult {
  double loss = 0;           // mean over all tokens of the step that count, and then over the replicas
  double gradient_norm = 0;  // before clipping; the mean over the replicas
  double loss_scale = 1;     // of the backward that computed the gradients
  bool updated = true;       // false: the norm is infinite or NaN, and the step was left out; or nothing has arrived
  bool arrived = true;       // false: with a delay, the first step, which has no gradients to apply; its norm is 0
  double ended = 0;          // when this rank had made the update, by now_seconds(); of run()
};

// Steps that a Trainer runs in turn, numbered from 0.
struct TrainedSteps {
  std::int64_t count = 1;
  std::function<FillSlot(std::int64_t)> fill_of;
  std::function<double(std::int64_t)> lr_of;  // empty with servers, which know it (split_into_servers())
  // With TrainingOptions::saves_in_flight, called on every rank when it has made the updates of a step and before it
  // computes on, though microbatches are under way: what a checkpoint saves there, another run goes on from with the same
  // bits. `saves` says behind which steps, the same on every rank; behind all when it is empty. In front of the call a stage
  // waits until all stages have made the step's updates, and calls done(): whatever goes on from the checkpoint has the
  // step's report.
  std::function<bool(std::int64_t)> saves = {};
  std::function<void(std::int64_t)> updated = {};
  // Called on every rank, in the order of the steps, when the step's result is known. Stages of a schedule without a flush,
  // and workers of servers, have then begun later steps, and each may call it at another time.
  std::function<void(std::int64_t, const StepResult&)> done;
};

// One rank of data x tensor x pipeline parallel training with gradient accumulation and ZeRO 0 to 3.
class STRETTO_API Trainer {
 public:
  // Trains on `mesh`, which takes the place of options.mesh. Collective over mesh.world(). With options.diloco this is a
  // rank of one replica, the ranks of which are the mesh's, and `peers` has those of its place in all replicas
  // (split_into_replicas()): steps are then collective over all replicas, everything else over the ranks of one. Replica r
  // takes the r-th part of a step's slots. With options.servers this is a worker of `servers` (split_into_servers()), which
  // must outlive the object. Throws like TrainingOptions::check().
  Trainer(const Mesh& mesh, const TrainingOptions& options, const Communicator& peers = {}, ServerSet* servers = nullptr);

  // Collective. Throws Error(invalid_argument) on all ranks if no token of the step counts, and where !meets_each_step(),
  // which run() takes. With a delay, lr belongs to the gradients of the step's batch, and is used when
  // the next step, or finish(), applies them.
  StepResult step(const FillSlot& fill, double lr);
  // Trains several steps. A schedule without a flush fills the pipeline before them and empties it behind them; between two
  // updates a step then has one window of the schedule. Every update clips by the norm of its stage's gradients, or by that
  // of all stages in the step before (TrainingOptions::clips_by_step_before). Stages that update jointly (updates_jointly)
  // clip by the norm of all, and all leave out the update of a step whose norm is infinite or NaN; a loss scale is that
  // behind the last step whose update the first microbatch of a step can find made. Under PipeDream a step has as many
  // updates as microbatches, and gradient_norm is that of the last. With servers, workers may be as far apart as the
  // consistency lets them, and have the same values, of all steps, when run() returns; gradient_norm is that of
  // gradient_norm() for gradients that nobody has summed. Collective.
  void run(const TrainedSteps& steps);
  bool flushes() const { return !is_window(pipeline_->schedule()); }
  // Whether all ranks end each step together. Not so without a flush, and with servers.
  bool meets_each_step() const { return flushes() && !options_.servers.any(); }
  // With a delay, behind the last step: applies its gradients, so that T steps have made T updates. A step that comes later
  // all the same is as the first one. Otherwise, or if nothing is late, does nothing. The result has no loss. Collective.
  StepResult finish();
  // Computes, communicates and updates like a step whose learning rate is 0, whatever the gradients are; for rehearsals, in
  // which they are meaningless. Training cannot go on afterwards. Collective.
  void rehearse(const FillSlot& fill);
  // Computes the gradients of one step, times the loss scale, without an update; for parity tests. With a delay, those of
  // the step before are there when it returns. Collective.
  StepResult compute_gradients(const FillSlot& fill);
  // Mean loss over the tokens that count of count slots, each computed by one data-parallel rank. Collective. Throws
  // likewise.
  double evaluate(const FillSlot& fill, std::int64_t count);
  // This rank's columns of the logits of sequences, on the ranks of the stage that has the head; empty on others. Collective
  // over the ranks of one data-parallel replica, and at ZeRO stage 3 over all.
  Tensor logits(const Batch& sequences);
  // The logits of the token behind the last one of a sequence of at most shape.sequence tokens, of the whole vocabulary, in
  // f64 in host memory, on the ranks of the stage that has the head; empty on others. Collective likewise. Where sequences
  // are not divided, keys and values are kept, so that a call with the tokens of the one before and some more computes these
  // only.
  Tensor next_logits(const std::vector<std::int32_t>& tokens);

  // A checkpoint must keep these beside the states (save_checkpoint): the loss scale in f16, the norm by which the next step
  // clips (TrainingOptions::clips_by_step_before), in flight the name of the schedule, and with a delay the learning rate
  // and the loss scale of the gradients that no step has applied yet.
  std::map<std::string, std::string> notes() const;
  // Behind load_checkpoint(): throws Error(invalid_argument) for notes in flight of another schedule. Not collective, so
  // that one rank can report it before restore().
  void check_notes(const std::map<std::string, std::string>& notes) const;
  // Goes on from such notes, behind load_checkpoint() and Optimizer::restore(). Throws like check_notes(), for late
  // gradients before the update from which on there may be some (TrainingOptions::delay_from), and Error(io) for notes that
  // cannot be, or are missing. Collective in flight: it shares the older versions.
  void restore(const std::map<std::string, std::string>& notes);

  const Decoder& model() const { return *model_; }
  // Decoder::weigh_adapters(), between two steps or samples; keys and values that next_logits() has kept are computed again.
  void weigh_adapters(const AdapterWeights& weights);
  const Parameters& parameters() const { return parameters_; }
  ShardedParameters& sharded() { return *sharded_; }
  Optimizer& optimizer() { return *optimizer_; }
  const SpeculativeUpdate* speculation() const { return speculative_.get(); }  // null without
  DiLoCo* diloco() { return diloco_.get(); }                                   // null without replicas
  LossScale& loss_scale() { return loss_scale_; }
  Pipeline& pipeline() { return *pipeline_; }
  const Mesh& mesh() const { return mesh_; }
  const TrainingOptions& options() const { return options_; }

 private:
  // Some slots of this rank, and how many tokens count in those of all data-parallel ranks.
  struct CountedBatch {
    Batch batch;
    std::int64_t counted;
  };
  class Windows;  // runs a schedule without a flush
  void run_served(const TrainedSteps& steps);
  // The slots of this rank in a step; its number is what dropout follows from.
  CountedBatch slots_of_step(const FillSlot& fill, std::int64_t step) const;
  std::int64_t first_slot() const;
  // Forward and backward of this rank's slots, one microbatch after the other.
  std::vector<Decoder::Loss> run_microbatches(const CountedBatch& slots);
  // Computes the gradients of a step. lr: also begins the update behind it, if there are late gradients.
  StepResult compute_step(const FillSlot& fill, std::optional<double> lr);
  bool is_late() const;
  double gradient_scale(double norm, double loss_scale) const;
  void apply(StepResult& result, double lr);
  void average_over_replicas(StepResult& result) const;
  void adapt_errors(const StepResult& result);
  // The slots slot_of(0), ..., slot_of(count - 1), of which the first `own` are those of no other data-parallel rank, which
  // have `all` together. Collective.
  struct SlotCounts {
    std::int64_t count, own, all;
  };
  CountedBatch batch_of(const FillSlot& fill, const SlotCounts& slots,
                        const std::function<std::int64_t(std::int64_t)>& slot_of) const;
  // Sums a value, which the stage with the head has, over the ranks of that stage that have other tokens.
  double sum_over_tokens(double value) const;
  // This rank's logits of `tokens` from `first` on, by keys and values that are kept.
  Tensor grown_logits(const std::vector<std::int32_t>& tokens, std::int64_t first);
  Tensor divided_logits(const std::vector<std::int32_t>& tokens);
  // The whole row of logits of the position, on the stage with the head.
  Tensor whole_row(const Tensor& logits, std::optional<std::int64_t> position) const;
  // This rank's tokens of whole sequences of any length that divides. starts: empty if each is one document.
  Batch own_tokens(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets, std::int64_t length,
                   const std::vector<std::int32_t>& starts = {}) const;
  // Tokens::draws of a step's tokens: of the seed, the number of the step, the slot and the position in it.
  Tensor draws_of(std::int64_t step) const;
  void keep_documents_apart(const std::vector<std::int32_t>& starts, std::int64_t length, Batch& batch) const;

  Mesh mesh_;
  TrainingOptions options_;
  LossScale loss_scale_;
  struct {
    double lr = 0, loss_scale = 1;
  } late_;  // of the last step's gradients, with a delay
  Parameters parameters_;
  std::shared_ptr<const KeptAttention> attention_;
  std::vector<std::int32_t> kept_;  // the tokens whose keys and values attention_ keeps
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<ShardedParameters> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<DelayedUpdate> delayed_;  // of updates that run behind computation
  std::unique_ptr<SpeculativeUpdate> speculative_;
  bool runs_behind_ = false;  // the update of this step
  std::unique_ptr<DiLoCo> diloco_;
  std::unique_ptr<PipeMare> pipemare_;  // of a schedule that does not stash
  std::unique_ptr<Pipeline> pipeline_;
  Communicator reports_;               // where ranks do not meet in each step
  std::optional<double> norm_before_;  // of all stages in the last step, with TrainingOptions::clips_by_step_before
};

}  // namespace stretto
