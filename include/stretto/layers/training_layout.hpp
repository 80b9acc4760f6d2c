#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "stretto/attention_mask.hpp"
#include "stretto/layers/sequence.hpp"
#include "stretto/layers/stage_division.hpp"
#include "stretto/layers/training_memory.hpp"

namespace stretto {

// How a GPT is trained by the ranks of a job: everything that decides a step's memory, traffic and time, and nothing else.
struct STRETTO_API TrainingLayout {
  ModelShape model;
  MeshShape mesh;
  ShardedParameters::Options sharding;
  std::int64_t micro_batch = 4;   // sequences that a rank computes at a time
  std::int64_t global_batch = 8;  // sequences of a step, over all data-parallel ranks and microbatches
  RecomputeOptions recompute;
  bool divides_rows = false;    // TensorParallel::divides_rows
  bool keeps_gathered = false;  // TensorParallel::keeps_gathered
  SequenceLayout sequence_layout = SequenceLayout::zigzag;
  kernels::AttentionMask mask;
  StageDivision stages;
  bool saves_in_background = false;  // CheckpointSaver::Options::in_background

  // Throws Error(invalid_argument) that names the sizes that do not fit together, in the words of stretto-train's flags.
  // Returns the schedule, which takes long to make, or to read from its file, again.
  Schedule check() const;
  void check_sizes() const;  // all of check() but the schedule
  std::int64_t microbatches() const { return global_batch / micro_batch / mesh[Axis::data]; }
  SequenceDivision division() const { return {mesh[Axis::ring], mesh[Axis::ulysses], sequence_layout}; }
  TensorParallel tensor_parallel() const;  // for plans: it has no group
  ModelCut cut(const Schedule& schedule, int stage) const { return stages.cut(model, schedule, stage); }
};

// What the first rank of a pipeline stage needs for training, by formula: no rank is started.
struct STRETTO_API StagePlan {
  TrainingMemory memory;
  // Bytes in a step, by group; without norm, loss and times. An estimate at ZeRO stage 3 without a pipeline, where a unit
  // may stay from one use to the next; and at stages 2 and 3 with schedules that split backward, where gradients of norms
  // come before those of other weights, and a unit may be summed more or less often than there are microbatches.
  std::map<std::string, std::int64_t> sent;
  std::int64_t all_sent() const;
};
// With the schedule that layout.check() returned. Cost: the records of the model's parameters, and the stage's list.
STRETTO_API StagePlan plan_stage(const TrainingLayout& layout, const Schedule& schedule, int stage);

}  // namespace stretto
