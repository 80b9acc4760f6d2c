#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "stretto/layers/parameter.hpp"

namespace stretto {

// Whole tensors by name, assembled from the slices of all ranks.
using Wholes = std::map<std::string, std::vector<double>>;

// Ranks that have copies must have equal ones.
inline void enter(Wholes& wholes, const std::string& name, const Shape& global_shape, const Shape& first,
                  const Tensor& slice) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : global_shape) elements *= extent;
  std::vector<double>& whole = wholes[name];
  whole.resize(static_cast<std::size_t>(elements), NAN);
  for_each_run(global_shape, first, slice.shape(), [&](std::int64_t here, std::int64_t there, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      double& place = whole[static_cast<std::size_t>(there + i)];
      EXPECT_TRUE(std::isnan(place) || place == slice.at(here + i)) << name << ": ranks differ at " << there + i;
      place = slice.at(here + i);
    }
  });
}

}  // namespace stretto
