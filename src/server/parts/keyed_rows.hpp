#pragma once
#include <cstdint>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// A push to a part: rows with their keys, which ascend, or without keys all elements of a range.
struct KeyedRows {
  std::vector<std::uint64_t> keys;
  Tensor rows;  // [keys, width], or the elements
};

// Adds up the rows of several lists by key, in the order of the lists.
KeyedRows sum_by_key(const std::vector<KeyedRows>& lists);

}  // namespace stretto
