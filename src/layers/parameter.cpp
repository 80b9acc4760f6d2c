#include "stretto/layers/parameter.hpp"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <tuple>

#include "core/fail.hpp"
#include "core/parts.hpp"
#include "core/split_mix.hpp"
#include "stretto/kernels.hpp"

namespace stretto {
namespace {

std::uint64_t key_of(std::uint64_t seed, const std::string& stream) {
  return XXH3_64bits_withSeed(stream.data(), stream.size(), seed);
}

double uniform_at(std::uint64_t key, std::uint64_t index) {
  return static_cast<double>(split_mixed(key + (index + 1) * split_mix_step) >> 11) * 0x1p-53;
}

double normal_at(std::uint64_t key, std::uint64_t index) {  // Box & Muller 1958
  const double radius = std::sqrt(-2 * std::log(1 - uniform_at(key, 2 * index)));
  return radius * std::cos(2 * std::numbers::pi * uniform_at(key, 2 * index + 1));
}

std::int64_t product(const Shape& shape) {
  std::int64_t result = 1;
  for (const std::int64_t extent : shape) result *= extent;
  return result;
}

std::int64_t elements_of_index(const Shape& shape) {  // of one index of the first dimension
  std::int64_t result = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) result *= shape[d];
  return result;
}

void check_slice(const Parameter& parameter) {
  const auto& [shape, first, extents] = std::tie(parameter.global_shape, parameter.first, parameter.extents);
  require(!shape.empty(), "Parameter {} has no dimensions; give a single element the shape {{1}}.", parameter.name);
  require(first.size() == shape.size() && extents.size() == shape.size(),
          "Parameter {} of shape {} has a slice that begins at {} and has the extents {}; give all three the same number of "
          "dimensions.",
          parameter.name, shape, first, extents);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    require(first[d] >= 0 && extents[d] >= 0 && first[d] <= shape[d] && extents[d] <= shape[d] - first[d],
            "Parameter {} of shape {} has a slice that begins at {} and has the extents {}, which does not lie in it.",
            parameter.name, shape, first, extents);
  }
  require(parameter.tiles == 1 || (parameter.tiles > 1 && !parameter.part_of.empty()),
          "Parameter {} cannot be one of {} tiles; name the parameter that it is a part of.", parameter.name,
          parameter.tiles);
  if (parameter.part_of.empty()) return;
  const auto [begin, count] = parameter.portion;
  require(begin >= 0 && count >= 1 && begin <= shape[0] && count <= shape[0] - begin && first[0] >= begin &&
              first[0] + extents[0] <= begin + count,
          "Parameter {} is the part of {} of shape {} from index {} on, {} in all, in which its slice that begins at {} and "
          "has the extents {} does not lie.",
          parameter.name, parameter.part_of, shape, begin, count, first, extents);
}

void check_matrices(const Parameter& parameter) {
  if (parameter.matrices.empty()) return;
  const std::int64_t rows = parameter.global_elements() / std::max<std::int64_t>(1, parameter.global_shape.back());
  const std::int64_t sum = std::accumulate(parameter.matrices.begin(), parameter.matrices.end(), std::int64_t{0});
  require(parameter.global_shape.size() > 1 && std::ranges::all_of(parameter.matrices, [](auto each) { return each > 0; }) &&
              sum == rows,
          "Parameter {} of shape {} cannot consist of matrices of {} rows; give each some, and {} together.", parameter.name,
          parameter.global_shape, parameter.matrices, rows);
}

}  // namespace

double random_uniform(std::uint64_t seed, const std::string& stream, std::uint64_t index) {
  return uniform_at(key_of(seed, stream), index);
}
double random_normal(std::uint64_t seed, const std::string& stream, std::uint64_t index) {
  return normal_at(key_of(seed, stream), index);
}

Share share_of(std::int64_t count, int parts, int i) { return {part_begin(count, parts, i), part_size(count, parts, i)}; }

std::int64_t Parameter::elements() const { return product(extents); }
std::int64_t Parameter::global_elements() const {
  return part_of.empty() ? product(global_shape) : portion.count * elements_of_index(global_shape) / tiles;
}
std::int64_t Parameter::first_global_element() const { return portion.first * elements_of_index(global_shape); }

Parameter Parameter::divided(std::string name, Shape global_shape, std::size_t dimension, int ranks, int rank,
                             const Traits& traits) {
  require(dimension < global_shape.size(), "Parameter {} of shape {} cannot be divided along its dimension {}.", name,
          global_shape, dimension);
  Parameter parameter = whole(std::move(name), std::move(global_shape), token_axes, traits);
  const auto [first, count] = share_of(parameter.global_shape[dimension], ranks, rank);
  parameter.first[dimension] = first;
  parameter.extents[dimension] = count;
  parameter.replicated_over = token_axes;
  return parameter;
}

Parameter Parameter::whole(std::string name, Shape global_shape, Axes sum_gradient_over, const Traits& traits) {
  return {.name = std::move(name),
          .global_shape = global_shape,
          .first = Shape(global_shape.size(), 0),
          .extents = global_shape,
          .replicated_over = token_axes | Axis::tensor,
          .sum_gradient_over = sum_gradient_over,
          .initial = traits.initial,
          .decays = traits.decays,
          .matrices = traits.matrices,
          .trainable = traits.trainable,
          .overwrites_gradient = traits.overwrites_gradient};
}

bool UsedParameters::any_trainable() const {
  return std::ranges::any_of(parameters, [](const Parameter* parameter) { return parameter->trainable; });
}

Parameter& Parameters::add(Parameter parameter) {
  check_slice(parameter);
  check_matrices(parameter);
  require(names_.insert(parameter.name).second,
          "A second parameter is named '{}'; give each a name of its own, by which checkpoints know it.", parameter.name);
  parameter.index = all_.size();
  parameter.part = place_.part;
  parameter.is_here = place_.is_here;
  if (!place_.is_here) parameter.extents.front() = 0;
  if (place_.at_both_ends) {
    parameter.replicated_over = parameter.replicated_over | Axis::pipeline;
    parameter.sum_gradient_over = parameter.sum_gradient_over | Axis::pipeline;
  }
  all_.push_back(std::make_unique<Parameter>(std::move(parameter)));
  return *all_.back();
}

const UsedParameters& Parameters::used_together(std::vector<Parameter*> parameters) {
  used_.push_back(std::make_unique<const UsedParameters>(UsedParameters{used_.size(), std::move(parameters)}));
  return *used_.back();
}

void set_initial_values(const Parameter& parameter, std::uint64_t seed, std::int64_t first, const Tensor& values) {
  const std::uint64_t key = key_of(seed, parameter.global_name());
  const Initial initial = parameter.initial;
  const bool on_gpu = values.device() != Device::cpu;
  const Tensor here = on_gpu ? Tensor(values.shape(), values.dtype(), Device::cpu) : values;
  const auto value_at = [&](std::int64_t index) {
    if (initial.reach > 0) {
      return initial.mean + initial.reach * (2 * uniform_at(key, static_cast<std::uint64_t>(index)) - 1);
    }
    const double noise = initial.deviation == 0 ? 0 : initial.deviation * normal_at(key, static_cast<std::uint64_t>(index));
    return initial.mean + noise;
  };
  for_each_run(parameter, first, values.size(), [&](std::int64_t to, std::int64_t whole, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) here.set(to + i, value_at(whole + i));
  });
  if (on_gpu) values.copy_from(here);
}

std::int64_t Parameters::global_elements() const {
  std::int64_t sum = 0;
  for (const auto& parameter : all_) sum += parameter->global_elements();
  return sum;
}

std::int64_t Parameters::local_elements() const {
  std::int64_t sum = 0;
  for (const auto& parameter : all_) sum += parameter->elements();
  return sum;
}

}  // namespace stretto
