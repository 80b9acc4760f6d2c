#pragma once
#include <functional>
#include <string>
#include <vector>

#include "stretto/layers/sharded_parameters.hpp"
#include "stretto/stretto.hpp"

// A model without layers, for tests of what happens to parameters and their gradients.
namespace stretto {

// A parameter that is divided over the tensor axis, and one of which every rank holds all.
inline void add_parameters(Parameters& parameters, const Mesh& mesh, std::int64_t columns = 4) {
  const Share share = share_of(10, mesh.size(Axis::tensor), mesh.rank(Axis::tensor));
  parameters.add({.name = "divided",
                  .global_shape = {10, columns},
                  .first = {share.first, 0},
                  .extents = {share.count, columns},
                  .replicated_over = token_axes,
                  .sum_gradient_over = token_axes,
                  .initial = {2, 1}});
  parameters.add({.name = "replicated",
                  .global_shape = {9},
                  .first = {0},
                  .extents = {9},
                  .replicated_over = token_axes | Axis::tensor,
                  .sum_gradient_over = token_axes,
                  .initial = {2, 1},
                  .decays = false});
}

// A step without layers: adds value(name, global index) to the gradients of data rank 0, and nothing to the others'.
inline void sum_gradients(ShardedParameters& sharded, Parameters& parameters,
                          const std::function<double(const std::string&, std::int64_t)>& value) {
  std::vector<Parameter*> all;
  for (const auto& parameter : parameters.all()) all.push_back(parameter.get());
  sharded.begin_step();
  {
    const InUse in_use(sharded, all, Pass::backward);
    for (const Parameter* parameter : all) {
      if (sharded.mesh().rank(Axis::data) != 0) continue;
      for_each_run(*parameter, 0, parameter->gradient.size(), [&](std::int64_t to, std::int64_t from, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) parameter->gradient.set(to + i, value(parameter->name, from + i));
      });
    }
  }
  sharded.end_microbatch();
  sharded.finish_sums();
}

}  // namespace stretto
