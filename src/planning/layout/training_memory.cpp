#include "stretto/planning/training_memory.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <vector>

#include "core/parts.hpp"
#include "device/cpu/products/compute_threads.hpp"
#include "layers/first_of_copies.hpp"
#include "layers/optimizer/kept_momentum.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/coefficient_exchange.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "overlap/offload/unit_file.hpp"
#include "planning/layout/matrix_plan.hpp"
#include "stretto/kernels.hpp"
#include "stretto/layers/diloco.hpp"

namespace stretto {
namespace {

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(size_of(dtype)); }

// The bytes of the rank of a stage that has the most, which is the first unless elements of matrices differ from others.
struct ElementBytes {
  std::int64_t of_matrix = 0, of_other = 0;

  std::int64_t most(const Parameters& parameters, const std::vector<UnitMembers>& units, const MeshShape& mesh,
                    const std::function<bool(const UnitMembers&)>& whole) const {
    std::int64_t result = 0;
    for (int token = 0; token < (of_matrix == of_other ? 1 : mesh.ranks_over(token_axes)); ++token) {
      std::int64_t bytes = 0;
      for (const UnitMembers& unit : units) {
        if (!unit.trainable) continue;
        const HeldElements held = held_elements(parameters, unit, mesh, token, whole(unit));
        bytes += of_matrix * held.matrices + of_other * held.others;
      }
      result = std::max(result, bytes);
    }
    return result;
  }
};

// Of an optimizer that exchanges its momentum: a rank's own gradients, what it keeps of m, and as buffers the errors of both
// hops.
void add_momentum(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                  QuantizedFormat format, TrainingMemory& memory) {
  const DType wide = kernels::accumulator(options.dtype);
  for (const LocalVector& vector : local_vectors(parameters, cut_units(parameters, mesh, options), mesh)) {
    const int ranks = mesh.gradient_ranks(vector.summed);
    memory.optimizer += bytes_of(wide) * vector.elements;
    if (ranks == 1) continue;
    memory.optimizer += KeptMomentum::bytes(format, ranks, vector.elements, wide);
    if (format == QuantizedFormat::none) continue;
    memory.buffers += bytes_of(DType::f32) * (vector.elements + part_size(vector.elements, ranks, 0));
  }
}

// Of PowerSGD: a rank's own gradients, and as buffers the errors, Q of two steps, and of one vector at a time the first
// message, the rank's own Q and the product for the largest matrix.
void add_factors(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                 TrainingMemory& memory) {
  const std::vector<LocalVector> vectors = local_vectors(parameters, cut_units(parameters, mesh, options), mesh);
  const auto travels = [&](const LocalVector& vector) { return mesh.gradient_ranks(vector.summed) > 1; };
  if (std::ranges::none_of(vectors, travels)) return;
  std::int64_t most = 0, kept = 0;
  for (const LocalVector& vector : vectors) {
    memory.optimizer += bytes_of(DType::f32) * vector.elements;
    if (!travels(vector)) continue;
    const FactoredVector as = factored(vector.pieces, parameters, options.powersgd);
    kept += (options.powersgd.use_error_feedback ? vector.elements : 0) + 2 * as.factors;
    most = std::max(most, as.sent + as.factors + as.largest);
  }
  memory.buffers += bytes_of(DType::f32) * (kept + most);
}

// Of DeMo: a rank's own gradients, and as buffers what it has yet to send, of one vector at a time the messages of all
// ranks and what this process's number of threads takes for one matrix, and the bases of the transforms.
void add_coefficients(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                      const CoefficientChoice& how, TrainingMemory& memory) {
  std::int64_t most = 0;
  std::set<std::int64_t> sides;
  for (const LocalVector& vector : local_vectors(parameters, cut_units(parameters, mesh, options), mesh)) {
    const CoefficientVector as = coefficients_of(vector.pieces, parameters, how);
    memory.optimizer += bytes_of(DType::f32) * vector.elements;
    memory.buffers += bytes_of(DType::f32) * vector.elements;
    const std::int64_t messages = mesh.gradient_ranks(vector.summed) * as.bytes();
    most = std::max(most, messages + as.scratch_bytes(kernels::cpu::compute_threads()));
    for (const auto& its : as.matrices) {
      sides.insert({its.grid.height, its.grid.width});
    }
  }
  for (const std::int64_t side : sides) memory.buffers += 2 * bytes_of(DType::f32) * side * side;
  memory.buffers += most;
}

// What the first of so many ranks sends in an all-reduce: its contributions to others' parts, and the sum of its own. bytes:
// of a part.
std::int64_t sent_in_all_reduce(std::int64_t elements, int ranks, const std::function<std::int64_t(std::int64_t)>& bytes) {
  std::int64_t sent = 0;
  for (int other = 1; other < ranks; ++other) {
    sent += bytes(part_size(elements, ranks, other)) + bytes(part_size(elements, ranks, 0));
  }
  return sent;
}

using SentByGroup = std::map<std::string, std::int64_t>;

// Values that owners have updated.
void add_gathers(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                 SentByGroup& sent) {
  for (const UnitMembers& unit : cut_units(parameters, mesh, options)) {
    const int ranks = mesh.gradient_ranks(unit.axes);
    if (ranks == 1 || !unit.trainable || unit.stage(options) == ZeroStage::none) continue;
    sent[group_name(unit.axes)] += (ranks - 1) * unit.share(mesh) * bytes_of(options.dtype);
  }
}

SentByGroup factors_traffic(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options) {
  SentByGroup sent;
  const auto bytes = [](std::int64_t elements) { return bytes_of(DType::f32) * elements; };
  for (const LocalVector& vector : local_vectors(parameters, cut_units(parameters, mesh, options), mesh)) {
    const int ranks = mesh.gradient_ranks(vector.summed);
    if (ranks == 1) continue;
    const FactoredVector as = factored(vector.pieces, parameters, options.powersgd);
    for (const std::int64_t message : {as.sent, as.factors}) {
      sent[group_name(vector.summed)] += sent_in_all_reduce(message, ranks, bytes);
    }
  }
  add_gathers(parameters, mesh, options, sent);
  return sent;
}

}  // namespace

TrainingMemory state_memory(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                            const OptimizerKind& optimizer) {
  const std::int64_t e = bytes_of(options.dtype);
  const std::int64_t g = bytes_of(options.gradients());
  TrainingMemory memory;
  std::vector<std::int64_t> state_bytes;  // by unit
  std::int64_t largest_values = 0, staying_values = 0;
  std::int64_t largest_gradients = 0, largest_sum = 0;
  std::int64_t all_gradients = 0, all_sums = 0;
  const std::vector<UnitMembers> units = cut_units(parameters, mesh, options);
  const SharesInFiles files = shares_in_files(units, mesh, options);
  const auto is_whole = [&](const UnitMembers& unit) {
    return mesh.gradient_ranks(unit.axes) == 1 || unit.stage(options) == ZeroStage::none;
  };
  const ElementBytes states{optimizer.state_bytes(options.dtype, true), optimizer.state_bytes(options.dtype)};
  memory.optimizer = states.most(parameters, units, mesh, is_whole);
  for (std::size_t i = 0; i < units.size(); ++i) {
    const UnitMembers& unit = units[i];
    const int ranks = mesh.gradient_ranks(unit.axes);
    const ZeroStage stage = unit.stage(options);
    const std::int64_t share = unit.share(mesh);
    const std::int64_t whole = share * ranks;
    // On one rank only what lies in a file leaves.
    const bool divided = stage == ZeroStage::values && (ranks > 1 || files.values[i] > 0);
    const bool leaves = unit.trainable && stage >= ZeroStage::gradients && (ranks > 1 || files.gradients[i] > 0);
    const bool stored = unit.stored != StoredFormat::plain;
    const std::int64_t kept = divided ? share : whole;
    memory.values += stored ? stored_bytes(unit.stored, kept) : e * kept - files.values[i];
    if (divided && unit.has_second_copy() && options.hpz_size > 1) memory.values += e * whole / options.hpz_size;
    if (unit.trainable && options.versions > 1) memory.values += (options.versions - 1) * e * whole;
    if (unit.trainable && options.updates_behind()) memory.values += e * (is_whole(unit) ? whole : share);  // the next ones
    if (unit.trainable) memory.gradients += (1 + options.delay) * (g * (leaves ? share : whole) - files.gradients[i]);
    state_bytes.push_back(states.most(parameters, {unit}, mesh, is_whole));
    if (divided || stored) {
      const std::int64_t gathered = e * whole + (divided ? ranks * stored_bytes(unit.stored, share) : 0);
      if (divided && keeps_through_step(mesh, options)) {
        staying_values += gathered;
      } else {
        largest_values = std::max(largest_values, gathered);
      }
    }
    if (leaves) {
      largest_gradients = std::max(largest_gradients, g * whole);
      largest_sum = std::max(largest_sum, g * share);
      all_gradients += g * whole;
      all_sums += g * share;
    }
  }
  const std::vector<std::int64_t> in_file = options.offload.optimizer.in_file(state_bytes);
  for (std::size_t i = 0; i < units.size() && options.offload.speculates; ++i) {
    if (in_file[i] > 0)
      memory.values += e * units[i].share(mesh) * (is_whole(units[i]) ? mesh.gradient_ranks(units[i].axes) : 1);
  }
  memory.optimizer -= std::accumulate(in_file.begin(), in_file.end(), std::int64_t{0});
  for (const std::vector<std::int64_t>* const each : {&in_file, &files.values, &files.gradients}) {
    memory.buffers += UnitFile::buffer_bytes(*each);
  }
  if (optimizer.coefficients) add_coefficients(parameters, mesh, options, *optimizer.coefficients, memory);
  if (optimizer.momentum_exchange) add_momentum(parameters, mesh, options, *optimizer.momentum_exchange, memory);
  if (options.powersgd.any()) add_factors(parameters, mesh, options, memory);
  const std::int64_t ahead = options.overlap ? options.prefetch : 0;
  // Shares that are read ahead of their gathers, and sums that are written or read behind them.
  if (!files.values.empty()) memory.buffers += (ahead + 3) * *std::ranges::max_element(files.values);
  // With a delay, the sums of a whole step are in flight up to stage 2.
  const bool late = options.delay > 0 && options.overlap && options.zero != ZeroStage::values;
  if (!files.gradients.empty()) {
    const std::int64_t largest = *std::ranges::max_element(files.gradients);
    const std::int64_t all = std::accumulate(files.gradients.begin(), files.gradients.end(), std::int64_t{0});
    memory.buffers += (late ? all : ahead * largest) + 2 * largest;
  }
  memory.buffers += staying_values + (ahead + 2) * largest_values;
  // The second term is of sums of later microbatches, before they are added.
  memory.buffers += (late ? all_gradients : ahead * largest_gradients) + 2 * largest_gradients;
  memory.buffers += (late ? all_sums : ahead * largest_sum) + largest_sum;
  if (optimizer.whole_matrices) memory.buffers += matrix_buffers(parameters, mesh, options);
  return memory;
}

std::int64_t snapshot_memory(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options,
                             const OptimizerKind& optimizer, bool trained_only) {
  const DType wide = kernels::accumulator(options.dtype);
  const std::vector<UnitMembers> units = cut_units(parameters, mesh, options);
  const std::int64_t older = options.saves_versions ? std::max(options.versions - 1, 0) * bytes_of(options.dtype) : 0;
  const std::int64_t late = options.versions == 0 ? options.delay * bytes_of(options.gradients()) : 0;
  const std::int64_t more = late + older;
  const ElementBytes trained{bytes_of(wide) + optimizer.state_bytes(wide, true) + more,
                             bytes_of(wide) + optimizer.state_bytes(wide) + more};
  std::int64_t bytes = trained.most(parameters, units, mesh, [](const UnitMembers&) { return false; });
  for (const UnitMembers& unit : units) {
    if (!unit.trainable && !trained_only) bytes += bytes_of(options.dtype) * std::min(unit.share(mesh), unit.elements);
  }
  if (optimizer.coefficients) {  // each rank's own momentum
    for (const LocalVector& each : local_vectors(parameters, units, mesh)) bytes += bytes_of(DType::f32) * each.elements;
  }
  return bytes;
}

std::vector<OuterElements> outer_elements(const Parameters& parameters, const MeshShape& mesh,
                                          const ShardedParameters::Options& options, int fragments) {
  const std::vector<int> fragment_of = fragments_of(parameters, fragments);
  std::vector<OuterElements> elements(static_cast<std::size_t>(fragments));
  for (const UnitMembers& unit : cut_units(parameters, mesh, options)) {
    if (!unit.trainable) continue;
    std::int64_t left = unit.share(mesh);  // the first rank's share is the beginning of the unit
    for (const std::size_t i : unit.parameters) {
      const std::int64_t its = std::min(left, parameters.all()[i]->elements());
      OuterElements& fragment = elements[static_cast<std::size_t>(fragment_of[i])];
      fragment.all += its;
      if (!copied_over(*parameters.all()[i], mesh).empty()) fragment.copied += its;
      left -= its;
    }
  }
  return elements;
}

std::map<std::string, std::int64_t> state_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                  const ShardedParameters::Options& options, std::int64_t microbatches,
                                                  int passes) {
  if (options.powersgd.any()) return factors_traffic(parameters, mesh, options);
  const auto bytes = [](QuantizedFormat format, std::int64_t elements, DType dtype) {
    return format == QuantizedFormat::none ? elements * bytes_of(dtype) : packed_bytes(format, elements);
  };
  std::map<std::string, std::int64_t> sent;
  for (const UnitMembers& unit : cut_units(parameters, mesh, options)) {
    const int ranks = mesh.gradient_ranks(unit.axes);
    if (ranks == 1) continue;
    const std::int64_t share = unit.share(mesh);
    const std::int64_t sum = unit.trainable ? (ranks - 1) * bytes(unit.format(options.qgz), share, options.gradients()) : 0;
    const std::int64_t gather =
        (ranks - 1) * (unit.stored != StoredFormat::plain ? stored_bytes(unit.stored, share)
                                                          : bytes(unit.format(options.qwz), share, options.dtype));
    const ZeroStage stage = unit.stage(options);
    if (!unit.trainable && stage != ZeroStage::values) continue;  // frozen values are gathered where they are divided
    const bool in_node = stage == ZeroStage::values && unit.has_second_copy() && options.hpz_size > 1;
    const std::int64_t gathers =
        keeps_through_step(mesh, options) ? 1 : passes * microbatches;  // of a step, at ZeroStage::values
    // A second copy of frozen values never becomes stale.
    const std::int64_t over_all = !in_node ? gathers : unit.trainable ? 1 : 0;
    std::int64_t& group = sent[group_name(unit.axes)];
    switch (stage) {
      case ZeroStage::none: group += sum + (ranks - 1) * bytes_of(options.gradients()) * share; break;
      case ZeroStage::optimizer: group += sum + gather; break;
      case ZeroStage::gradients: group += microbatches * sum + gather; break;
      case ZeroStage::values: group += microbatches * sum + over_all * gather; break;
    }
    if (in_node && gathers > over_all) {
      const std::int64_t part = share * ranks / options.hpz_size;
      sent["hpz"] += (gathers - over_all) * (options.hpz_size - 1) * part * bytes_of(options.dtype);
    }
  }
  return sent;
}

std::map<std::string, std::int64_t> momentum_traffic(const Parameters& parameters, const MeshShape& mesh,
                                                     const ShardedParameters::Options& options,
                                                     const OptimizerKind& optimizer) {
  SentByGroup sent;
  const auto bytes = [&, format = optimizer.momentum_exchange.value_or(QuantizedFormat::none)](std::int64_t elements) {
    return format == QuantizedFormat::none ? bytes_of(kernels::accumulator(options.dtype)) * elements
                                           : packed_bytes(format, elements);
  };
  for (const LocalVector& vector : local_vectors(parameters, cut_units(parameters, mesh, options), mesh)) {
    const int ranks = mesh.gradient_ranks(vector.summed);
    if (ranks == 1) continue;
    sent[group_name(vector.summed)] +=
        optimizer.coefficients ? (ranks - 1) * coefficients_of(vector.pieces, parameters, *optimizer.coefficients).bytes()
                               : sent_in_all_reduce(vector.elements, ranks, bytes);
  }
  add_gathers(parameters, mesh, options, sent);
  return sent;
}

}  // namespace stretto
