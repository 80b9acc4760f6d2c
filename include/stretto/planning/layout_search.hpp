#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stretto/planning/layout_cost.hpp"

namespace stretto {

// The layouts to choose from. Members that are set are fixed; of all others, every value is tried that divides:
// - tensor: divisors of the ranks, up to the number of heads; with and without sequence parallelism above 1;
// - pipeline: divisors, up to the number of layers; data: the ranks that are left;
// - ring and ulysses: powers of two that divide a sequence into at most 16 pieces of at least 1024 tokens, ulysses up to the
//   number of heads. Shorter pieces cost more in messages than they save;
// - micro-batch: powers of two up to 64;
// - schedule: 1f1b, interleaved with 2 to 8 chunks, zb-h1, zb-h2 and zb-v. gpipe takes as long as 1f1b and needs more
//   memory, and 1f1b-eager differs from 1f1b only where messages take long: both only if set, as are schedules without a
//   flush (all_window_kinds()), which change the weights;
// - ZeRO stages 0 to 3, with several data-parallel ranks, and the three levels of recomputation.
struct STRETTO_API LayoutSpace {
  DecoderShape model;
  AdapterOptions adapters = {};  // TrainingOptions::adapters
  std::int64_t ranks = 1;
  std::int64_t global_batch = 1;
  std::int64_t memory_bytes = 0;        // of a device
  ShardedParameters::Options sharding;  // types, units; its zero is not read
  OptimizerOptions optimizer;
  kernels::AttentionMask mask;
  std::optional<int> tensor, ulysses, ring, pipeline, data, virtual_stages;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::string> schedule;
  std::optional<ZeroStage> zero;
  std::optional<bool> divides_rows;
  std::optional<Recompute> recompute;
  SequenceLayout sequence_layout = SequenceLayout::zigzag;
  bool keeps_gathered = false;          // TensorParallel::keeps_gathered: only layouts with sequence parallelism
  int tiles = 1;                        // TrainingOptions::tiles: above 1 only ZeRO stage 3
  bool partitions_activations = false;  // RecomputeOptions::partition: only full recomputation without sequence parallelism
  std::string activations_directory = {};  // RecomputeOptions::directory: only full recomputation
  // Not empty: also layouts with the optimizer's state in files in this directory, from stage 2 on with gradients there, and
  // at stage 3 with values. Of layouts that are as fast, those with less in files come first. `sharding` then has none in
  // files.
  std::string files_directory = {};
  bool may_split_backward = true;  // false: without zb-h1, zb-h2 and zb-v, unless set
};

struct FoundLayout {
  TrainingOptions layout;
  LayoutCost cost;
};

struct LayoutSearch {
  // The recommended one, then the fastest of each other number of tensor-parallel ranks and stages, the fastest first.
  std::vector<FoundLayout> best;
  std::int64_t tried = 0;           // layouts that divide
  std::int64_t without_memory = 0;  // of those, found not to fit the memory; slow ones are not looked at closely
  std::int64_t least_memory = 0;    // bytes that the smallest of them needs, if none fits
  struct Refusal {
    std::int64_t count = 0;
    std::string sentence;  // of the first one
  };
  // Layouts that do not divide, the most frequent reason first; sentences that differ in numbers only count as one.
  std::vector<Refusal> refused;
};

// Returns the fastest layouts that fit the memory, by LayoutCosts, one of each number of tensor-parallel ranks and stages,
// and at most `most`: others differ from these in little. Among all that take at most 2% longer than the
// fastest, which is less than predictions err, the simplest comes first: the one with the fewest axes (tensor, with divided
// rows, pipeline, ring, ulysses), then with 1f1b rather than interleaved rather than a schedule that splits backward, then
// with the least recomputation and the lowest ZeRO stage. Layouts are tried from the least possible time
// (LayoutCosts::least_seconds) on, until none of the rest can be among the fastest, so that few schedules are simulated.
// Layouts of the same predicted time are in the order of the memory that they need. looked_at: called repeatedly with the
// number of looks at layouts so far, and with the most that there will be; a large space can take minutes.
using LookedAt = std::function<void(std::int64_t looks, std::int64_t most)>;
STRETTO_API LayoutSearch search_layouts(const LayoutSpace& space, const TrainingCluster& cluster, std::size_t most = 10,
                                        const TrainingSystem& system = {}, const LookedAt& looked_at = {});

// All of the space's layouts, and the refusals, in one list; for checks of the search on small spaces.
STRETTO_API std::vector<TrainingOptions> all_layouts(const LayoutSpace& space, const LayoutCosts& costs,
                                                     std::vector<LayoutSearch::Refusal>* refused = nullptr);

// The reasons why no layout was tried, for an error message: the three most frequent ones at most, a line each.
STRETTO_API std::string refusal_text(const LayoutSpace& space, const LayoutSearch& search);
// "tp 8 (sp) x pp 4 x dp 2, micro-batch 1, interleaved of 2, ZeRO 1, recomputes selective"
STRETTO_API std::string to_string(const TrainingOptions& layout);

}  // namespace stretto
