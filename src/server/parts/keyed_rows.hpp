#pragma once
#include <cstdint>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// What is pushed to a part: rows of some keys, which ascend, or without keys all elements of a range.
struct KeyedRows {
  std::vector<std::uint64_t> keys;
  Tensor rows;  // [keys, width], or the elements
};

// Adds up the rows of several lists by key, in the order of the lists.
KeyedRows sum_by_key(const std::vector<KeyedRows>& lists);

}  // namespace stretto
