#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "stretto/attention_mask.hpp"
#include "stretto/layers/adapter.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/layers/diloco.hpp"
#include "stretto/layers/loss_scale.hpp"
#include "stretto/layers/optimizers.hpp"
#include "stretto/layers/pipemare.hpp"
#include "stretto/layers/recompute.hpp"
#include "stretto/layers/sequence.hpp"
#include "stretto/layers/sharded_parameters.hpp"
#include "stretto/layers/tensor_parallel.hpp"
#include "stretto/models/stage_division.hpp"
#include "stretto/server.hpp"

namespace stretto {

// Ranks beside those of the mesh that hold the trained values and update them (models/served_training.hpp).
struct ServerOptions {
  int count = 0;  // 0: none
  Consistency consistency = {};
  std::int64_t part_elements = std::int64_t{1} << 16;  // ServerSet::Options::part_elements
  int copies = 0;  // ServerSet::Options::copies: as many servers may be lost, and workers train on
  bool any() const { return count > 0; }
};

// How a GPT is trained by the ranks of a job: all that decides a step's results, memory, traffic and time. The same options
// make a Trainer (trainer.hpp) and a plan of it (stretto/planning/stage_plan.hpp).
struct STRETTO_API TrainingOptions {
  DecoderShape model;
  AdapterOptions adapters;  // with a rank: they alone are trained
  MeshShape mesh;
  ShardedParameters::Options sharding;  // types, ZeRO, and how the parameters' traffic overlaps
  OptimizerOptions optimizer;
  ServerOptions servers;
  DiLoCoOptions diloco;  // with several replicas: each is trained on a mesh of its own, and they agree every so many steps
  std::int64_t micro_batch = 4;   // sequences that a rank computes at a time
  std::int64_t global_batch = 8;  // sequences of a step, over all replicas, data-parallel ranks and microbatches
  RecomputeOptions recompute;
  bool divides_rows = false;    // sequence parallelism: TensorParallel::divides_rows
  bool keeps_gathered = false;  // TensorParallel::keeps_gathered
  // TensorParallel::tiles of the blocks' linear layers. Above 1 only where values come for a use and go behind it: at ZeRO
  // stage 3, in a pipeline with values in files, or with AdapterOptions::base in 4 or 8 bits.
  int tiles = 1;
  SequenceLayout sequence_layout = SequenceLayout::zigzag;  // over the ranks of a ring
  kernels::AttentionMask mask;                              // of a model without a window of its own
  StageDivision stages;      // 2bw is 2bw-joint where stages have to agree: in f16, and with a tied table on several stages
  PipeMareOptions pipemare;  // of a schedule that does not stash
  LossScale::Options loss_scale;  // with f16
  std::int64_t delay_from = 0;    // with ShardedParameters::Options::delay: how many updates are made without it first
  double clip_norm = 1.0;         // 0: no clipping. A Trainer gives it to OneBitAdam as well.
  // Without a flush, a stage clips by the norm of its own gradients, unless stages update jointly (updates_jointly): then by
  // that of all, as with a flush. True, for schedules whose stages do not and which update once in a step: a stage clips by
  // the norm of all stages' gradients in the step before, which has arrived by then, and in the first step by that of its
  // own.
  bool clips_by_step_before = false;
  std::uint64_t seed = 1;
  // CheckpointSaver::Options::in_background and trained_only; plans count the copy that is being written.
  bool saves_in_background = false, saves_trained_only = false;
  bool saves_in_flight = false;  // a schedule without a flush goes on while it is saved (TrainedSteps::updated)

  // Throws Error(invalid_argument) that names the sizes that do not fit together. Returns the schedule, which takes long to
  // make, or to read from its file, again. It may be a window (is_window), whose microbatches() are those of a step here.
  Schedule check() const;
  void check_sizes() const;                                                      // all of check() but the schedule
  TrainingOptions on(const MeshShape& other) const;                              // the same on another mesh
  std::int64_t replica_batch() const { return global_batch / diloco.replicas; }  // sequences of a step in one replica
  std::int64_t rank_batch() const { return replica_batch() / mesh.ranks_over(sequence_axes); }  // of a step on one rank
  std::int64_t microbatches() const { return rank_batch() / micro_batch; }
  // With the slots of the outer optimizer, and of a schedule that does not stash.
  OptimizerKind optimizer_kind(const Schedule& schedule) const;
  // `mask`, or that of the model's window. A window that no sequence reaches is none.
  kernels::AttentionMask attention_mask() const;
  SequenceDivision division() const { return {mesh[Axis::ring], mesh[Axis::ulysses], sequence_layout}; }
  TensorParallel tensor_parallel() const;  // for plans: it has no group
  // For layers that communicate in these groups. Ring and Ulysses attention are collective over theirs.
  TensorParallel tensor_parallel(const Mesh& groups, const Stream& stream) const;
  std::shared_ptr<const AttentionCore> attention(const Mesh& groups, bool overlap) const;
  // stages.schedule_name, or 2bw-joint for 2bw where stages have to agree.
  std::string schedule_name() const;
  ModelCut cut(const Schedule& schedule, int stage) const { return stages.cut(model, schedule, stage); }
  // The options of a stage: with the versions that the schedule keeps, and a delay where it puts gradients aside.
  ShardedParameters::Options sharding_of(const Schedule& schedule, int stage) const;
  // Likewise, for a caller that knows versions_of() the stage.
  ShardedParameters::Options sharding_with(const Schedule& schedule, int versions) const;
};

// The updates that a stage's forwards lack more than its backwards, in the mean: 0 in a schedule that stashes.
STRETTO_API double discrepancy_of(const Schedule& schedule, int stage);
// ShardedParameters::Options::versions of a stage: 0 unless the schedule is a window.
STRETTO_API int versions_of(const Schedule& schedule, int stage);

}  // namespace stretto
