#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "stretto/layers/optimizer.hpp"
#include "stretto/layers/transformer.hpp"

// The memory and the traffic of training by formula, before anything is allocated: from the records of the parameters, for
// any number of ranks, in one process. ZeRO's formulas (Rajbhandari et al. 2020), with the padding of units.
namespace stretto {

// Bytes that one rank holds: values, gradients and optimizer all the time, activations and buffers at most at a time.
struct TrainingMemory {
  std::int64_t values = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  std::int64_t total() const { return values + gradients + optimizer + activations + buffers; }
};

// Values, gradients and the optimizer's state, and as buffers the units that ShardedParameters has on their way: at ZeRO
// stage 3 gathered values (in a pipeline those of all units), from stage 2 on whole gradients, each of up to prefetch + 1
// units. With Psi parameters on N data-parallel ranks, in bf16 with 16-bit gradients and with AdamW, the first three are 16
// Psi at stage 0, 4 Psi + 12 Psi/N, 2 Psi + 14 Psi/N, and 16 Psi/N. Of the first rank; later ranks have as much, or less by
// the padding.
STRETTO_API TrainingMemory state_memory(const Parameters& parameters, const MeshShape& mesh,
                                        const ShardedParameters::Options& options, const OptimizerKind& optimizer);

// Bytes of the copy that CheckpointSaver makes to write it in the background: values and slots of what the first rank owns,
// without the errors of quantized sums.
STRETTO_API std::int64_t snapshot_memory(const Parameters& parameters, const MeshShape& mesh,
                                         const ShardedParameters::Options& options, const OptimizerKind& optimizer);

// Bytes that a rank sends in a step for gradients and values, by group (group_name): (N-1)/N Psi times 2 g (stage 0; g
// + e for units whose values are gathered instead, Options::measured_steps), g + e (1), m g + e (2), or m g + p m e (3), for
// m microbatches of p passes, values of e bytes and gradients of g. There are 2 passes, or 3 with Recompute::full. At stage
// 3 it is an estimate: a unit that is among the next ones to be used when a use of it ends, such as at the turn from forward
// to backward, is not gathered again, and one that is used at several places of a pass, such as a tied table's, is gathered
// for each; in a pipeline, every unit is gathered once. Sums are counted as by algorithms that send every contribution as it
// is; a ring sends partial sums of 16 bits in f32. Quantized sums are counted as on one node, where they take one hop. With
// hpZ, all gathers of a step but the first count for the group "hpz". In the ledger, values travel in a group of their own,
// "dp parameters".
STRETTO_API std::map<std::string, std::int64_t> state_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                              const ShardedParameters::Options& options,
                                                              std::int64_t microbatches, int passes = 2);

// The activations of a block for a microbatch of `batch` sequences of `sequence` tokens, in bytes (layers/recompute.hpp), on
// the first rank of its tensor-parallel group.
struct BlockActivations {
  std::int64_t kept = 0;      // between forward and backward
  std::int64_t backward = 0;  // added to that, at most, during the block's backward; without dx
  std::int64_t later = 0;     // what a backward_input leaves for backward_weight (weight_gradients.hpp)
};
STRETTO_API BlockActivations block_activations(const TransformerShape& shape, std::int64_t batch, std::int64_t sequence,
                                               DType dtype, const TensorParallel& tensor_parallel,
                                               const RecomputeOptions& recompute);

// How many tensors of the residual's shape a block gathers, or sums and scatters, over its tensor-parallel ranks for a
// microbatch; an all-reduce counts as two. A rank sends (t-1)/t of the bytes of each. (Shoeybi et al. 2019; with own rows
// Korthikanti et al. 2022.) If gradients of weights come later, own rows are gathered for them twice more.
struct BlockExchanges {
  std::int64_t forward = 0, backward = 0;
};
STRETTO_API BlockExchanges block_exchanges(const TensorParallel& tensor_parallel, const RecomputeOptions& recompute);

}  // namespace stretto
