#include "stretto/layers/training_memory.hpp"

#include <algorithm>

#include "layers/unit_cut.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

int ranks_of(const UnitMembers& unit, const MeshShape& mesh) {
  int ranks = 1;
  for (const Axis axis : all_axes) ranks *= unit.axes.contains(axis) ? mesh.size(axis) : 1;
  return ranks;
}

std::int64_t padded_share(const UnitMembers& unit, const MeshShape& mesh) {
  const int ranks = ranks_of(unit, mesh);
  return (unit.elements + ranks - 1) / ranks;
}

}  // namespace

TrainingMemory state_memory(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options) {
  const std::int64_t e = bytes_of(options.dtype);
  const std::int64_t g = bytes_of(options.gradients());
  const DType accumulator = kernels::accumulator(options.dtype);
  const std::int64_t states = (options.dtype == accumulator ? 2 : 3) * bytes_of(accumulator);  // moments, master weights
  TrainingMemory memory;
  std::int64_t largest_values = 0;
  std::int64_t largest_gradients = 0;
  for (const UnitMembers& unit : cut_units(parameters, mesh, options)) {
    const int ranks = ranks_of(unit, mesh);
    const ZeroStage stage = ranks > 1 ? options.zero : ZeroStage::none;
    const std::int64_t share = padded_share(unit, mesh);
    const std::int64_t whole = share * ranks;
    memory.values += e * (stage == ZeroStage::values ? share : whole);
    if (stage == ZeroStage::values && options.hpz_size > 1) memory.values += e * whole / options.hpz_size;
    memory.gradients += g * (stage >= ZeroStage::gradients ? share : whole);
    memory.optimizer += states * (stage == ZeroStage::none ? unit.elements : std::min(share, unit.elements));
    if (stage == ZeroStage::values) largest_values = std::max(largest_values, e * whole);
    if (stage >= ZeroStage::gradients) largest_gradients = std::max(largest_gradients, g * whole);
  }
  const std::int64_t ahead = options.overlap ? options.prefetch : 0;
  memory.buffers = (ahead + 2) * (largest_values + largest_gradients);
  const std::int64_t ranks = mesh.ranks() / mesh.tensor / mesh.pipeline;
  memory.buffers += (ahead + 1) * (largest_gradients / ranks);  // sums of later microbatches, before they are added
  return memory;
}

std::map<std::string, std::int64_t> state_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                  const ShardedParameters::Options& options, std::int64_t microbatches,
                                                  int passes) {
  const auto bytes = [](QuantizedFormat format, std::int64_t elements, DType dtype) {
    return format == QuantizedFormat::none ? elements * bytes_of(dtype) : packed_bytes(format, elements);
  };
  std::map<std::string, std::int64_t> sent;
  for (const UnitMembers& unit : cut_units(parameters, mesh, options)) {
    const int ranks = ranks_of(unit, mesh);
    if (ranks == 1) continue;
    const std::int64_t share = padded_share(unit, mesh);
    const std::int64_t sum = (ranks - 1) * bytes(options.qgz, share, options.gradients());
    const std::int64_t gather = (ranks - 1) * bytes(options.qwz, share, options.dtype);
    const bool in_node = options.zero == ZeroStage::values && options.hpz_size > 1;
    std::int64_t& group = sent[group_name(unit.axes)];
    switch (options.zero) {
      case ZeroStage::none: group += sum + (ranks - 1) * bytes_of(options.gradients()) * share; break;
      case ZeroStage::optimizer: group += sum + gather; break;
      case ZeroStage::gradients: group += microbatches * sum + gather; break;
      case ZeroStage::values: group += microbatches * sum + (in_node ? 1 : passes * microbatches) * gather; break;
    }
    if (in_node) {
      const std::int64_t part = share * ranks / options.hpz_size;
      sent["hpz"] += (passes * microbatches - 1) * (options.hpz_size - 1) * part * bytes_of(options.dtype);
    }
  }
  return sent;
}

BlockActivations block_activations(const TransformerShape& shape, std::int64_t batch, std::int64_t sequence, DType dtype,
                                   int tensor_parallel, const RecomputeOptions& recompute) {
  const std::int64_t tokens = batch * sequence;
  const std::int64_t row = tokens * shape.hidden * bytes_of(dtype);            // a tensor of the residual's shape
  const std::int64_t divided = row / tensor_parallel;                          // of one that is divided over heads
  const std::int64_t wide = shape.mlp_factor * divided;                        // within the MLP
  const std::int64_t number = tokens * bytes_of(kernels::accumulator(dtype));  // one per token
  const std::int64_t scores = number * (shape.heads / tensor_parallel);        // log-sum-exp
  // The inputs of both norms with mean and rstd; q, k and v, what attention made of them, log-sum-exp; before GELU.
  const std::int64_t needed = 2 * row + 4 * number + 4 * divided + scores + wide;
  const std::int64_t again = 2 * row + wide;  // the norms' results, and GELU's
  // In the MLP's backward: the gradients before GELU and before the norm. GELU's result is freed before the latter is made.
  const std::int64_t gradients = wide + row;
  switch (recompute.level) {
    case Recompute::none: return {needed + again, gradients};
    case Recompute::selective: return {needed, gradients + std::max(wide - row, row + 2 * number)};
    case Recompute::full: break;
  }
  const std::int64_t kept = recompute.partition ? (tokens + tensor_parallel - 1) / tensor_parallel * (row / tokens) : row;
  // The kept input is one of the tensors that are there again, or its share is freed. The gathered input of the next block
  // takes the place of its share meanwhile.
  return {kept, needed + again + gradients - kept + (recompute.partition ? row - kept : 0)};
}

}  // namespace stretto
