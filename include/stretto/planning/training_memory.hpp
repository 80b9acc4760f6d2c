#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/optimizer.hpp"

// The memory and the traffic of training by formula, before anything is allocated: from the records of the parameters, for
// any number of ranks, in one process. ZeRO's formulas (Rajbhandari et al. 2020), with the padding of units.
namespace stretto {

// Bytes that one rank holds: values, gradients and optimizer all the time, activations and buffers at most at a time.
struct TrainingMemory {
  std::int64_t values = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  std::int64_t total() const { return values + gradients + optimizer + activations + buffers; }
};

// Values, gradients and the optimizer's state, and as buffers the units that ShardedParameters has on their way: at ZeRO
// stage 3 and of stored values (Parameter::stored) gathered values (at stage 3 in a pipeline those of all units), from stage
// 2 on whole gradients, each of up to prefetch + 1 units; and the matrices of an optimizer that updates them whole. With a
// delay, gradients count twice, and at stage 2 whole gradients of all units are on their way; where updates run behind
// computation (DelayedUpdate, SpeculativeUpdate), the values that a rank updates count once more. With Psi parameters on N
// data-parallel ranks, in bf16 with 16-bit gradients and with AdamW, the first three are 16 Psi at stage 0,
// 4 Psi + 12 Psi/N, 2 Psi + 14 Psi/N, and 16 Psi/N. Of the first rank; later ranks have as much, or less by the padding. The
// optimizer's state and such matrices: of the rank that has the most. Of an optimizer that exchanges its momentum
// (OptimizerKind::momentum_exchange) the optimizer's memory includes a rank's own gradients and the momentum that it keeps,
// and buffers the errors of both hops; of DeMo a rank's own gradients, and buffers its momentum, the messages of all ranks
// and what each of this process's STRETTO_COMPUTE_THREADS takes for a chunk; with PowerSGD a rank's own gradients, and
// buffers the errors and factors.
STRETTO_API TrainingMemory state_memory(const Parameters& parameters, const MeshShape& mesh,
                                        const ShardedParameters::Options& options, const OptimizerKind& optimizer);

// Bytes of the copy that CheckpointSaver makes to write it in the background: values, slots and late gradients of what the
// first rank owns, without the errors of quantized sums. trained_only: CheckpointSaver::Options's, which leaves frozen
// values out.
STRETTO_API std::int64_t snapshot_memory(const Parameters& parameters, const MeshShape& mesh,
                                         const ShardedParameters::Options& options, const OptimizerKind& optimizer,
                                         bool trained_only = false);

// The elements that the first rank exchanges of each fragment (DiLoCo::elements()), and how many of them are copies that
// other ranks of the replica update, too: those travel as they are, whatever the format of the others.
struct OuterElements {
  std::int64_t all = 0, copied = 0;
};
STRETTO_API std::vector<OuterElements> outer_elements(const Parameters& parameters, const MeshShape& mesh,
                                                      const ShardedParameters::Options& options, int fragments);

// Bytes that a rank sends in a step for gradients and values, by group (group_name). With values of e bytes, gradients of g,
// m microbatches and p passes (2, or 3 with Recompute::full), they are (N-1)/N Psi times
//
//   stage 0: 2 g, or g + e for units whose values are gathered instead (Options::measured_steps)
//   stage 1: g + e
//   stage 2: m g + e
//   stage 3: m g + p m e, an estimate: a unit that is used next when a use of it ends, as at the turn from forward to
//            backward, is not gathered again; one that is used at several places of a pass, as a tied table, is gathered for
//            each; in a pipeline every unit is gathered once, unless values lie in files.
//
// Sums are counted as by algorithms that send every contribution as it is; a ring sends partial sums of 16 bits in f32.
// Quantized sums are counted as on one node, where they take one hop. With hpZ, the group "hpz" has all gathers of a step
// but the first. In the ledger, values travel in a group of their own, "dp parameters".
//
// With PowerSGD they are, in a step once it has begun, 2 (N-1)/N times 4 bytes for the r (m + n) elements of each matrix's
// factors and for what is summed as it is, and at ZeRO stages 1 and 2 the values.
STRETTO_API std::map<std::string, std::int64_t> state_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                              const ShardedParameters::Options& options,
                                                              std::int64_t microbatches, int passes = 2);

// Bytes that the first rank of each group sends, by group, of an optimizer that exchanges something else than sums of
// gradients (OptimizerKind::sums_gradients()), and at ZeRO stages 1 and 2 (N-1)/N Psi e for values, as before.
// - In a step after OneBitAdam has frozen v: 2 (N-1)/N Psi elements of momentum in its format (onebit: 0.129 bytes), of
// which
//   each rank's part of N and the records of a part are rounded up. Two messages go to each other rank for a group and, in
//   tensor parallelism, two for parameters of which ranks hold copies. On one node, or by Algorithm::two_shot.
// - In a step of DeMo: (N-1) times 6 bytes for each coefficient that a rank sends, in one all-gather for a group and, in
//   tensor parallelism, one for parameters of which ranks hold copies.
STRETTO_API std::map<std::string, std::int64_t> momentum_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                                 const ShardedParameters::Options& options,
                                                                 const OptimizerKind& optimizer);

}  // namespace stretto
