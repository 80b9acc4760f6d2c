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
  Parameter& divided = parameters.add(Parameter::divided("divided", {10, columns}, 0, mesh.size(Axis::tensor),
                                                         mesh.rank(Axis::tensor), {.initial = {2, 1}, .matrices = {10}}));
  Parameter& replicated =
      parameters.add(Parameter::whole("replicated", {9}, token_axes, {.initial = {2, 1}, .decays = false}));
  parameters.used_together({&divided, &replicated});
}

// A step without layers: adds value(name, global index) to the gradients of data rank 0, and nothing to the others'. begun:
// called behind begin_step().
inline void sum_gradients(
    ShardedParameters& sharded, Parameters& parameters, const std::function<double(const std::string&, std::int64_t)>& value,
    const std::function<void()>& begun = [] {}) {
  sharded.begin_step();
  begun();
  for (const auto& used : parameters.used()) {
    const InUse in_use(sharded, *used, Pass::backward);
    for (const Parameter* parameter : used->parameters) {
      if (sharded.mesh().rank(Axis::data) != 0 || !parameter->trainable) continue;
      for_each_run(*parameter, 0, parameter->gradient.size(), [&](std::int64_t to, std::int64_t from, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) parameter->gradient.set(to + i, value(parameter->name, from + i));
      });
    }
  }
  sharded.end_microbatch();
  sharded.finish_sums();
}

}  // namespace stretto
