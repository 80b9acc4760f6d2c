#include "planning/layout/state_time.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/coefficient_exchange.hpp"
#include "layers/optimizer/matrices/hidden_matrices.hpp"
#include "layers/optimizer/matrices/matrix_exchange.hpp"
#include "layers/optimizer/matrices/newton_schulz.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "layers/sharded/unit_cut.hpp"
#include "planning/layout/matrix_plan.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

// Bytes moved per updated parameter: the norm reads the gradient; the optimizer reads the gradient, its slots and the master
// weight, and writes slots, master weight and value. Nearly all gradients are overwritten by the next step, not zeroed.
double own_update_bytes(const ShardedParameters::Options& options, const OptimizerKind& optimizer) {
  const DType accumulator = kernels::accumulator(options.dtype);
  const double states = 2 * static_cast<double>(optimizer.state_bytes(options.dtype, optimizer.whole_matrices));
  // Gradients are copied into the vector that owners get and from there into matrices; updates take the same way back. Each
  // copy reads and writes.
  const double copies = optimizer.whole_matrices ? 10 * static_cast<double>(size_of(accumulator)) : 0;
  const double value = static_cast<double>(size_of(options.dtype)) * (options.dtype == accumulator ? 2 : 1);
  return 2 * static_cast<double>(size_of(options.gradients())) + states + value + copies;
}

// The seconds that a step adds where ranks keep their own gradients. Passes over the elements accumulate gradients, add the
// errors of the step before, make the message, and bring the result to the updates. PowerSGD adds four products of r
// columns; DeMo adds a transform along both sides of each chunk, and two back: along the height for all rows, and along the
// width for the coefficients that a rank sends.
double own_gradient_seconds(const TrainingOptions& layout, const StateElements& elements, const TrainingCluster& cluster) {
  constexpr double passes = 16;
  const double seconds = cluster.pass_seconds(elements.trained * passes * static_cast<double>(size_of(DType::f32)), 4);
  const int rank = layout.sharding.powersgd.rank;
  const auto coefficients = kind_of(layout.optimizer).coefficients;
  if (rank == 0 && !coefficients) return seconds;
  const auto side = static_cast<double>(coefficients ? coefficients->chunk : rank);
  const double sent = coefficients ? std::min(1.0, static_cast<double>(coefficients->kept) / (side * side)) : 0;
  const double operations = coefficients ? (4 + 4 * (1 + sent)) * side : 8 * side;
  const DType products = cluster.products.contains(DType::f32) ? DType::f32 : layout.sharding.dtype;
  return seconds + operations * elements.trained / cluster.product_rate(products, std::cbrt(side * elements.matrix));
}

}  // namespace

StateTime state_time(const TrainingOptions& layout, const StateElements& elements, const PartTime& microbatch,
                     const TrainingCluster& cluster, const TrainingSystem& system, CollectiveCosts& costs) {
  const ShardedParameters::Options& options = layout.sharding;
  const MeshShape& mesh = layout.mesh;
  const int ranks = mesh.ranks_over(token_axes);
  const ZeroStage zero = ranks > 1 ? options.zero : ZeroStage::none;
  StateTime time;
  const double bytes = system.update_bytes > 0 ? system.update_bytes : own_update_bytes(options, kind_of(layout.optimizer));
  time.update = cluster.pass_seconds(elements.trained * bytes / (zero == ZeroStage::none ? 1 : ranks), 4);
  // The latest version is copied before it is replaced.
  if (options.versions > 1)
    time.update += cluster.pass_seconds(elements.trained * 2 * static_cast<double>(size_of(options.dtype)), 2);
  if (ranks == 1) return time;

  if (!elements.exchanged.empty()) time.update += own_gradient_seconds(layout, elements, cluster);
  // Units of a weight matrix, or of as many bytes as units have at least.
  const auto gradient = static_cast<double>(size_of(options.gradients()));
  const double unit = std::max(static_cast<double>(options.bytes_of_unit()) / gradient, elements.matrix);
  const StepGroup group{ranks, mesh[Axis::tensor]};
  const auto units_of = [&](double count) { return std::max(1.0, std::floor(count / unit)); };
  const auto seconds = [&](Collective kind, DType dtype, double count) {
    const double units = units_of(count);
    return units *
           collective_seconds(costs, kind, static_cast<std::int64_t>(count / units), dtype, group, cluster.narrow_sums);
  };
  // The last unit's sum begins when backward is over, and the first unit's values are needed when forward begins.
  const bool one_a_node = costs.place(group).on_node == 1;
  const double part = !options.overlap ? 0
                      : one_a_node     ? system.hidden_sums_between.value_or(system.hidden_sums)
                                       : system.hidden_sums;
  const auto left = [&](double communication, double count, double computing) {
    const double units = units_of(count);
    return communication - part * std::min(communication * (units - 1) / units, computing);
  };
  const double forward = microbatch.forward.all();
  const double backward = microbatch.input.all() + microbatch.weight.all();
  const auto microbatches = static_cast<double>(layout.microbatches());
  // With a delay, sums have the time of a whole step, and none of them begins too late to be hidden.
  const double step = microbatches * (forward + backward) + time.update;
  const double trained = elements.trained;
  double exchanged = 0;  // none of it is hidden
  for (const auto& [kind, count] : elements.exchanged) {
    exchanged += collective_seconds(costs, kind, count, DType::f32, group, false);
  }
  const auto left_of_sums = [&](double communication, double computing) {
    if (!elements.exchanged.empty()) return exchanged;
    if (options.versions > 0 && options.delay == 0) return communication;  // without a flush they begin with the update
    return options.delay == 0 ? left(communication, trained, computing)
                              : communication - part * std::min(communication, step);
  };
  if (zero == ZeroStage::none) {
    time.exposed = left_of_sums(seconds(Collective::all_reduce, options.gradients(), trained), backward);
    return time;
  }
  // Frozen values are gathered where they are divided, at ZeroStage::values.
  const double gathered = zero == ZeroStage::values ? elements.all : trained;
  const double sum = seconds(Collective::reduce_scatter, options.gradients(), trained);
  const double gather = seconds(Collective::all_gather, options.dtype, gathered);
  if (zero == ZeroStage::optimizer || !elements.exchanged.empty()) {
    time.exposed = left_of_sums(sum, backward) + left(gather, gathered, forward);
  } else if ((zero == ZeroStage::gradients || keeps_through_step(mesh, options)) && options.delay > 0) {
    time.exposed = left_of_sums(microbatches * sum, microbatches * backward) + left(gather, gathered, forward);
  } else if (zero == ZeroStage::gradients || keeps_through_step(mesh, options)) {
    time.exposed = microbatches * left(sum, trained, backward) + left(gather, gathered, forward);
  } else {
    const double again = layout.recompute.level == Recompute::full ? 2 : 1;  // gathers in backward
    time.exposed = microbatches * (left(gather, gathered, forward) + left(again * gather + sum, gathered, backward));
  }
  return time;
}

std::vector<ExchangedElements> exchanged_elements(const TrainingOptions& layout, const Parameters& parameters) {
  const ShardedParameters::Options& options = layout.sharding;
  const OptimizerKind kind = kind_of(layout.optimizer);
  const std::optional<QuantizedFormat> momentum = kind.momentum_exchange;
  const auto width = static_cast<std::int64_t>(size_of(DType::f32));
  std::vector<ExchangedElements> result;
  if (kind.sums_gradients() && !options.powersgd.any()) return result;
  for (const LocalVector& vector : local_vectors(parameters, cut_units(parameters, layout.mesh, options), layout.mesh)) {
    const int ranks = layout.mesh.gradient_ranks(vector.summed);
    if (ranks == 1) continue;
    if (kind.coefficients) {
      const CoefficientVector as = coefficients_of(vector.pieces, parameters, *kind.coefficients);
      result.push_back({Collective::all_gather, ranks * as.bytes() / width});
      continue;
    }
    if (momentum) {
      const auto wide = static_cast<std::int64_t>(size_of(kernels::accumulator(options.dtype)));
      const bool is_plain = *momentum == QuantizedFormat::none;
      const std::int64_t bytes = is_plain ? wide * vector.elements : packed_bytes(*momentum, vector.elements);
      result.push_back({.elements = bytes / width});
      continue;
    }
    const FactoredVector as = factored(vector.pieces, parameters, options.powersgd);
    result.push_back({.elements = as.sent});
    if (as.factors > 0) result.push_back({.elements = as.factors});
  }
  return result;
}

double matrix_seconds(const TrainingOptions& layout, const Parameters& parameters, const TrainingCluster& cluster,
                      CollectiveCosts& costs) {
  const std::vector<HiddenMatrix> matrices = hidden_matrices(parameters);
  const MeshShape& mesh = layout.mesh;
  const int ranks = mesh.ranks_over(token_axes | Axis::tensor);
  const std::vector<int> owners = owners_of(matrices, ranks);
  const DType wide = kernels::accumulator(layout.sharding.dtype);
  // Some clusters do not say how fast products in the accumulator type are: those in the compute type then count.
  const DType products = cluster.products.contains(wide) ? wide : layout.sharding.dtype;
  std::vector<double> seconds(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto flops = newton_schulz_flops(matrices[i].rows, matrices[i].columns);
    const auto side = static_cast<double>(std::min(matrices[i].rows, matrices[i].columns));
    seconds[static_cast<std::size_t>(owners[i])] += flops / cluster.product_rate(products, side);
  }
  if (ranks == 1) return std::ranges::max(seconds);
  const auto exchange = [&](Collective kind, std::int64_t elements) {
    return collective_seconds(costs, kind, elements, wide, {ranks, 1}, cluster.narrow_sums);
  };
  // Without an all-gather the two exchanges are as blocks of one all-to-all.
  std::int64_t sent =
      matrix_traffic(parameters, mesh, layout.sharding) * ranks / (ranks - 1) / static_cast<std::int64_t>(size_of(wide));
  double travels = 0;
  if (gathers_updates(mesh, layout.sharding)) {
    std::int64_t all = 0;
    for (const HiddenMatrix& matrix : matrices) all += matrix.elements();
    travels = exchange(Collective::all_gather, all);
    sent -= all;
  }
  return std::ranges::max(seconds) + travels + exchange(Collective::all_to_all, sent);
}

}  // namespace stretto
