#include "layers/sharded/unit_cut.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "overlap/bucket_cut.hpp"

namespace stretto {
namespace {

// Of the largest slice: tensor-parallel ranks whose slices differ in size must cut alike, since they agree on units' times.
std::int64_t elements_to_cut(const Parameter& parameter, const MeshShape& mesh) {
  const std::int64_t elements = parameter.global_elements();
  return parameter.replicated_over.contains(Axis::tensor) ? elements
                                                          : (elements + mesh[Axis::tensor] - 1) / mesh[Axis::tensor];
}

}  // namespace

std::vector<UnitMembers> cut_units(const Parameters& parameters, const MeshShape& mesh,
                                   const ShardedParameters::Options& options) {
  // In the order of backward. The parts of the model that a pipeline stage holds are used at different times.
  std::map<std::tuple<Axes, int, bool, StoredFormat>, std::vector<std::size_t>> lists;
  for (std::size_t i = parameters.all().size(); i-- > 0;) {
    const Parameter& each = *parameters.all()[i];
    if (!each.is_here) continue;
    const StoredFormat stored = each.trainable ? StoredFormat::plain : each.stored;
    lists[{mesh.divided(each.sum_gradient_over), -each.part, !each.trainable, stored}].push_back(i);
  }
  const DType dtype = options.gradients();
  std::vector<UnitMembers> units;
  for (const auto& [key, list] : lists) {
    std::vector<GradientSize> sizes;
    const auto is_tile = [&its = list, &parameters](std::size_t at) {
      return at < its.size() && parameters.all()[its[at]]->tiles > 1;
    };
    for (std::size_t at = 0; at < list.size(); ++at) {
      const auto elements = static_cast<std::size_t>(elements_to_cut(*parameters.all()[list[at]], mesh));
      sizes.push_back({elements * size_of(dtype), dtype, is_tile(at) || is_tile(at + 1)});
    }
    std::size_t begin = 0;
    for (const std::size_t end :
         cut_into_buckets(sizes, options.bytes_of_unit(), std::max<std::size_t>(options.bytes_of_unit() / 2, 1))) {
      UnitMembers& unit = units.emplace_back(
          UnitMembers{.trainable = !std::get<2>(key), .stored = std::get<3>(key), .axes = std::get<0>(key)});
      for (; begin < end; ++begin) {
        unit.parameters.push_back(list[begin]);
        unit.elements += parameters.all()[list[begin]]->elements();
      }
    }
  }
  return units;
}

SharesInFiles shares_in_files(const std::vector<UnitMembers>& units, const MeshShape& mesh,
                              const ShardedParameters::Options& options) {
  SharesInFiles bytes;
  for (const UnitMembers& unit : units) {
    const ZeroStage stage = unit.stage(options);
    const std::int64_t share = unit.share(mesh);
    const bool values = stage == ZeroStage::values && unit.stored == StoredFormat::plain;
    const bool gradients = stage >= ZeroStage::gradients && unit.trainable;
    bytes.values.push_back(values ? share * static_cast<std::int64_t>(size_of(options.dtype)) : 0);
    bytes.gradients.push_back(gradients ? share * static_cast<std::int64_t>(size_of(options.gradients())) : 0);
  }
  return {options.offload.values.in_file(bytes.values), options.offload.gradients.in_file(bytes.gradients)};
}

}  // namespace stretto
