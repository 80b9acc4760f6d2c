#include "layers/optimizer/local_vectors.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/fail.hpp"
#include "layers/first_of_copies.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "overlap/postponement_choice.hpp"
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
      const Axes copied = copied_over(parameter, mesh);
      LocalVector& vector = vectors[{units[unit].axes, copied}];
      vector.summed = units[unit].axes;
      vector.copied = copied;
      vector.pieces.push_back(
          {.parameter = i, .unit = unit, .member = member, .first = vector.elements, .count = parameter.elements()});
      vector.elements += parameter.elements();
    }
  }
  std::vector<LocalVector> result;
  result.reserve(vectors.size());
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

void check_own_gradients(std::string_view optimizer, const ShardedParameters::Options& options) {
  require(
      options.zero != ZeroStage::values,
      "{} needs whole gradients and momentum on every rank, and ZeRO stage 3 divides the values they belong to; give stage "
      "2 or below.",
      optimizer);
  require(options.offload.gradients.directory.empty(),
          "{} keeps whole gradients in the memory of every rank, and none of them can lie in {}; leave gradients out of the "
          "offload.",
          optimizer, options.offload.gradients.directory);
  require(!options.powersgd.any(),
          "{} exchanges its momentum, of which PowerSGD of rank {} would sum the gradients; leave one of them out.",
          optimizer, options.powersgd.rank);
}

void ShardedParameters::keep_gradients_local(bool local) {
  choice_.reset();  // what it would measure does not travel
  local_.clear();
  if (local) local_ = local_gradients_of(parameters_, members_, mesh_, options_);
  std::vector<std::vector<Tensor>> to(units_.size());
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    if (local && members_[unit].trainable) to[unit].resize(members_[unit].parameters.size());
  }
  for (const LocalGradients& group : local_) {
    for (const LocalGradients::Piece& piece : group.pieces) {
      to[piece.unit][piece.member] = group.vector.view(piece.first, {piece.count});
    }
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) units_[unit]->keep_gradients_local(std::move(to[unit]));
}

void ShardedParameters::set_updates(std::int64_t made) {
  const bool travels = std::ranges::any_of(members_, [](const UnitMembers& unit) { return !unit.axes.empty(); });
  const bool begun = options_.powersgd.any() && made >= options_.powersgd.start && travels;
  if (begun == (powersgd_ != nullptr)) return;
  powersgd_.reset();
  errors_->clear();
  keep_gradients_local(begun);
  if (begun) powersgd_ = std::make_unique<PowerSGD>(*this, options_.powersgd);
}

}  // namespace stretto
