#pragma once
#include <cstddef>
#include <cstdint>

namespace stretto {

// `count` elements of one tensor of a list, from element `first` on.
struct ElementRange {
  std::size_t tensor = 0;  // index in the list
  std::int64_t first = 0, count = 0;
  bool operator==(const ElementRange&) const = default;
};

}  // namespace stretto
