#pragma once
#include <cstdint>
#include <vector>

#include "stretto/tensor.hpp"

namespace stretto {

// A push to a part: rows with their keys, which ascend, or without keys all elements of a range.
struct KeyedRows {
  std::vector<std::uint64_t> keys;
  Tensor rows;  // [keys, width]; [elements], the rows one behind the other, if they have any length, or of a range
  std::vector<std::int64_t> lengths = {};  // by key: elements of its row, in a table with rows of any_length

  std::int64_t length(std::size_t key) const { return lengths.empty() ? rows.size() / std::ssize(keys) : lengths[key]; }
  std::vector<std::int64_t> begins() const {  // by key: elements before its row; at the end all
    std::vector<std::int64_t> result{0};
    for (std::size_t i = 0; i < keys.size(); ++i) result.push_back(result.back() + length(i));
    return result;
  }
};

// Adds up the rows of several lists by key, in the order of the lists. A key's rows have the same length.
KeyedRows sum_by_key(const std::vector<KeyedRows>& lists);

}  // namespace stretto
