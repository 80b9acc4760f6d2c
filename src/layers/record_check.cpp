#include "layers/record_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/fail.hpp"

namespace stretto {
namespace {

Axes both(Axes a, Axes b) { return a - (a - b); }

void check_sums(const Parameter& parameter) {
  const Axes only_summed = parameter.sum_gradient_over - parameter.replicated_over;
  require(
      only_summed.empty(),
      "The gradient of parameter {} is summed over {}, but the parameter is not replicated there; ranks with other slices "
      "have other gradients. Correct replicated_over or sum_gradient_over.",
      parameter.name, to_string(only_summed));
  const Axes lacking =
      both(parameter.replicated_over, token_axes) - parameter.sum_gradient_over - parameter.whole_gradient_over;
  require(
      lacking.empty(),
      "Parameter {} is replicated over {}, whose ranks see different tokens, but its gradient is not summed there; add the "
      "axis to sum_gradient_over, or to whole_gradient_over if each rank computes the whole gradient.",
      parameter.name, to_string(lacking));
}

// What the slices of all ranks must add up to, modulo 2^64: a wrong size changes the number of elements, a wrong place the
// sum of their indices.
struct Cover {
  std::uint64_t elements = 0, indices = 0;
  void add(std::int64_t first, std::int64_t count) {
    const auto begin = static_cast<std::uint64_t>(first), length = static_cast<std::uint64_t>(count);
    elements += length;
    indices += begin * length + (length % 2 == 0 ? length / 2 * (length - 1) : (length - 1) / 2 * length);
  }
  void add(const Cover& other) {
    elements += other.elements;
    indices += other.indices;
  }
  bool operator==(const Cover&) const = default;
};

Cover cover_of_slice(const Parameter& parameter) {
  Cover cover;
  for_each_run(parameter.global_shape, parameter.first, parameter.extents,
               [&](std::int64_t, std::int64_t whole, std::int64_t count) { cover.add(whole, count); });
  return cover;
}

Cover cover_of_copies(const Parameter& parameter, int copies) {
  Cover cover;
  cover.add(parameter.first_global_element(), parameter.global_elements() * parameter.tiles);
  return {cover.elements * static_cast<std::uint64_t>(copies), cover.indices * static_cast<std::uint64_t>(copies)};
}

}  // namespace

void check_records(const Parameters& parameters, const Mesh& mesh) {
  std::vector<Cover> covers;
  for (const auto& parameter : parameters.all()) {
    check_sums(*parameter);
    covers.push_back(cover_of_slice(*parameter));
  }
  if (covers.empty()) return;
  static_assert(sizeof(Cover) == 2 * sizeof(std::uint64_t));
  mesh.world()
      .all_reduce(covers.data(), covers.data(), 2 * static_cast<std::int64_t>(covers.size()), DType::u64, ReduceOp::sum,
                  Stream::inline_(), {.tag = "records of parameters"})
      .wait();
  std::map<std::string, Cover> of_tiles;  // which cover a parameter together
  for (std::size_t i = 0; i < covers.size(); ++i) {
    if (parameters.all()[i]->tiles > 1) of_tiles[parameters.all()[i]->part_of].add(covers[i]);
  }
  for (std::size_t i = 0; i < covers.size(); ++i) {
    const Parameter& parameter = *parameters.all()[i];
    if (parameter.tiles > 1) covers[i] = of_tiles[parameter.part_of];
    const int copies = mesh.shape().gradient_ranks(parameter.replicated_over);
    const Cover expected = cover_of_copies(parameter, copies);
    require(
        covers[i].elements == expected.elements,
        "Parameter {} of shape {}, replicated over {}, has {} elements on the {} ranks, which hold {} of it there and so "
        "must have {}. This rank's slice begins at {} and has the extents {}: correct these, or replicated_over.",
        parameter.name, parameter.global_shape, to_string(parameter.replicated_over), covers[i].elements,
        mesh.world().size(), copies == 1 ? "one copy" : fmt::format("{} copies", copies), expected.elements, parameter.first,
        parameter.extents);
    require(
        covers[i] == expected,
        "The slices of parameter {} of shape {} overlap, and leave out other elements of it. This rank's begins at {} and "
        "has the extents {}: correct these.",
        parameter.name, parameter.global_shape, parameter.first, parameter.extents);
  }
}

}  // namespace stretto
