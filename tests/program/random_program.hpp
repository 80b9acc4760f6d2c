#pragma once
#include <algorithm>
#include <random>
#include <vector>

#include "stretto/program.hpp"

namespace stretto {

// A random program of the functions "scale" and "sum", reductions and moves over
// groups of 1 to `executors` devices. All values have integers as elements, small enough to be exact.
inline Program random_program(std::mt19937& draw, int executors, int steps, bool keeps = false) {
  const auto below = [&](std::size_t n) { return static_cast<int>(draw() % n); };
  Program program("random");
  std::vector<Program::Group> groups;
  std::vector<std::vector<Program::Value>> of_group;
  const int number_of_groups = 1 + below(3);
  for (int g = 0; g < number_of_groups; ++g) {
    groups.push_back(program.group(1 + below(static_cast<std::size_t>(executors))));
    of_group.emplace_back();
  }
  const auto placement = [&] { return below(3) == 0 ? ValuePlacement::replicated() : ValuePlacement::along(below(2)); };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const ValueType type{DType::f64, {3 + below(4), 4}, placement()};
    of_group[g].push_back(keeps && below(2) == 0 ? program.kept_input(groups[g], type) : program.input(groups[g], type));
  }
  for (int s = 0; s < steps; ++s) {
    const auto g = static_cast<std::size_t>(below(groups.size()));
    const auto some = [&](std::size_t of) { return of_group[of][static_cast<std::size_t>(below(of_group[of].size()))]; };
    const Program::Value value = some(g);
    const ValueType type = program.values()[static_cast<std::size_t>(value.number)].type;
    const int kind = below(4);
    if (kind == 0) {
      of_group[g].push_back(program.call("scale", groups[g], {value}, {type}, 1 + below(2)).front());
    } else if (kind == 1) {
      // Each device adds up its part, and the parts are added up.
      const int devices = program.groups()[g];
      const Program::Value sums =
          program.call("sum", groups[g], {value}, {{DType::f64, {devices, 3}, ValuePlacement::along(0)}}).front();
      of_group[g].push_back(
          program.reduce(sums, ReduceOp::max, below(2) == 0 ? ValuePlacement::replicated() : ValuePlacement::along(0)));
    } else {
      const auto to = static_cast<std::size_t>(below(groups.size()));
      of_group[to].push_back(
          program.move(value, groups[to], type.shape.size() < 2 ? ValuePlacement::along(below(2) - 1) : placement()));
    }
  }
  for (const auto& values : of_group) {
    program.output(values.back());
    if (keeps) program.keep(values.front());
  }
  return program;
}

}  // namespace stretto
