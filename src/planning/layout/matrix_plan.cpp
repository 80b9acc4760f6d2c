#include "planning/layout/matrix_plan.hpp"

#include <algorithm>

#include "layers/optimizer/matrices/hidden_matrices.hpp"
#include "layers/optimizer/matrices/matrix_exchange.hpp"
#include "layers/optimizer/matrices/newton_schulz.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::int64_t bytes_of_element(const ShardedParameters::Options& options) {
  return static_cast<std::int64_t>(size_of(kernels::accumulator(options.dtype)));
}

ZeroStage stage_of(const MeshShape& mesh, const ShardedParameters::Options& options) {
  return mesh.ranks_over(token_axes) > 1 ? options.zero : ZeroStage::none;
}

// The ranks that update an element of a parameter.
std::int64_t updaters(const Parameter& parameter, const MeshShape& mesh, ZeroStage stage) {
  return (stage == ZeroStage::none ? mesh.ranks_over(token_axes) : 1) *
         (parameter.replicated_over.contains(Axis::tensor) ? mesh[Axis::tensor] : 1);
}

}  // namespace

HeldElements held_elements(const Parameters& parameters, const UnitMembers& unit, const MeshShape& mesh, int token,
                           bool whole) {
  const int ranks = mesh.gradient_ranks(unit.axes);
  const std::int64_t share = (unit.elements + ranks - 1) / ranks;
  const std::int64_t place = token * (unit.axes.contains(Axis::tensor) ? mesh[Axis::tensor] : 1) % ranks;
  const std::int64_t begin = whole ? 0 : std::min(unit.elements, share * place);
  const std::int64_t end = whole ? unit.elements : std::min(unit.elements, begin + share);
  HeldElements held;
  std::int64_t at = 0;
  for (const std::size_t i : unit.parameters) {
    const Parameter& parameter = *parameters.all()[i];
    const std::int64_t count = std::max<std::int64_t>(0, std::min(end, at + parameter.elements()) - std::max(begin, at));
    (parameter.matrices.empty() ? held.others : held.matrices) += count;
    at += parameter.elements();
  }
  return held;
}

// As MatrixExchange::run() goes: pieces and what the owner gets of them; that, the matrix under way and what the owner
// sends; that and what a rank gets.
std::int64_t matrix_buffers(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options) {
  const std::vector<HiddenMatrix> matrices = hidden_matrices(parameters);
  const ZeroStage stage = stage_of(mesh, options);
  const int ranks = mesh.ranks_over(token_axes | Axis::tensor);
  const std::vector<int> owners = owners_of(matrices, ranks);
  const bool gathers = gathers_updates(mesh, options) && !may_postpone(options);  // to the end
  std::vector<std::int64_t> received(static_cast<std::size_t>(ranks)), outgoing(received.size());
  std::int64_t matrix = 0;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const HiddenMatrix& its = matrices[i];
    const auto owner = static_cast<std::size_t>(owners[i]);
    received[owner] += its.elements();
    outgoing[owner] += its.elements() * (gathers ? 1 : updaters(*parameters.all()[its.parameter], mesh, stage));
    matrix = std::max(matrix, its.elements() + newton_schulz_elements(its.rows, its.columns));
  }
  std::int64_t contributed = 0, updated = 0;
  const std::vector<UnitMembers> units = cut_units(parameters, mesh, options);
  for (int token = 0; token < mesh.ranks_over(token_axes); ++token) {
    std::int64_t in_share = 0, all = 0;
    for (const UnitMembers& unit : units) {
      if (!unit.trainable) continue;
      in_share += held_elements(parameters, unit, mesh, token, false).matrices;
      all += held_elements(parameters, unit, mesh, token, stage == ZeroStage::none).matrices;
    }
    contributed = std::max(contributed, in_share);
    updated = std::max(updated, all);
  }
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < received.size(); ++rank) {
    most =
        std::max({most, contributed + received[rank], received[rank] + matrix + outgoing[rank], outgoing[rank] + updated});
  }
  return most * bytes_of_element(options);
}

std::int64_t matrix_traffic(const Parameters& parameters, const MeshShape& mesh, const ShardedParameters::Options& options) {
  const std::int64_t ranks = mesh.ranks_over(token_axes | Axis::tensor);
  std::int64_t elements = 0;
  for (const HiddenMatrix& its : hidden_matrices(parameters)) {
    elements += its.elements() * (1 + updaters(*parameters.all()[its.parameter], mesh, stage_of(mesh, options)));
  }
  return elements * (ranks - 1) / (ranks * ranks) * bytes_of_element(options);
}

}  // namespace stretto
