#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stretto/move.hpp"

namespace stretto {

Box whole(const Shape& shape);
std::optional<Box> common(const Box& a, const Box& b);  // empty: they share no element
bool contains(const Box& outer, const Box& inner);
std::string text(const Box& box);  // "[0..4, 2..8]"

// At most `parts` boxes that divide the box along its first dimension that is long enough, else along its longest.
std::vector<Box> cut(const Box& box, int parts);

// A Run is a row of elements of a box that are consecutive in the memory of a larger one.
struct Run {
  std::int64_t offset, count;
};
std::vector<Run> runs(const Box& outer, const Box& inner);

// The records of quantized blocks that a rank receives and passes on: it sends the same records again, because those of
// rounded elements would be others.
struct PassedRecords {
  std::map<std::string, std::int64_t> places;  // of a block's records in the rank's memory of them, by their name
  std::int64_t bytes = 0;

  static std::string name(const MoveBlock& block);
};
PassedRecords passed_records(const MovePlan& plan, int rank);

}  // namespace stretto
