#include "layers/optimizer/local_vectors.hpp"

#include <map>
#include <utility>

#include "core/fail.hpp"
#include "layers/first_of_copies.hpp"
#include "stretto/kernels.hpp"

namespace stretto {

std::vector<LocalVector> local_vectors(const Parameters& parameters, const std::vector<UnitMembers>& units,
                                       const MeshShape& mesh) {
  std::map<std::pair<Axes, Axes>, LocalVector> vectors;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].trainable) continue;
    for (std::size_t member = 0; member < units[unit].parameters.size(); ++member) {
      const std::size_t i = units[unit].parameters[member];
      const Parameter& parameter = *parameters.all()[i];
      const Axes copied = mesh.divided(parameter.replicated_over - parameter.sum_gradient_over);
      LocalVector& vector = vectors[{units[unit].axes, copied}];
      vector.summed = units[unit].axes;
      vector.copied = copied;
      vector.pieces.push_back(
          {.parameter = i, .unit = unit, .member = member, .first = vector.elements, .count = parameter.elements()});
      vector.elements += parameter.elements();
    }
  }
  std::vector<LocalVector> result;
  for (auto& [key, vector] : vectors) result.push_back(std::move(vector));
  return result;
}

std::vector<LocalGradients> local_gradients_of(const Parameters& parameters, const std::vector<UnitMembers>& units,
                                               const Mesh& mesh, const ShardedParameters::Options& options) {
  require(
      options.zero != ZeroStage::values,
      "Ranks that divide values (ZeRO stage 3) cannot keep their own gradients, which are whole; give stage 2 or below.");
  require(
      options.offload.gradients.directory.empty(),
      "Ranks whose sums of gradients lie in {} cannot keep their own gradients, which are in memory; leave gradients out of "
      "the offload.",
      options.offload.gradients.directory);
  const MemoryScope memory(MemoryKind::optimizer);
  std::vector<LocalGradients> result;
  for (LocalVector& its : local_vectors(parameters, units, mesh.shape())) {
    for (LocalGradients::Piece& piece : its.pieces) {
      piece.counts = first_of_copies(*parameters.all()[piece.parameter], mesh);
    }
    result.push_back({.name = group_name(its.summed) + (its.copied.empty() ? "" : " copies over " + group_name(its.copied)),
                      .group = mesh.gradient_group(its.summed),
                      .vector = Tensor::symmetric({its.elements}, kernels::accumulator(options.dtype)),
                      .pieces = std::move(its.pieces)});
    result.back().vector.zero();
  }
  return result;
}

}  // namespace stretto
