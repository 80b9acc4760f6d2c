#pragma once
#include <cstdint>
#include <vector>

#include "stretto/kernels.hpp"

namespace stretto::kernels::cpu {

// A head of a token.
struct PlaceOfHead {
  std::int64_t token = 0, head = 0;

  void advance(std::int64_t heads) {
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
};

// The places at which the heads of tokens begin.
template <class T>
class HeadPlaces {
 public:
  HeadPlaces(const TokenHeads& of, std::int64_t heads, std::int64_t head_size)
      : first_(of.tensor.data<T>()), step_(of.tensor.columns()) {
    for (std::int64_t head = 0; head < heads; ++head) columns_.push_back(of.column(head, head_size));
  }
  T* at(const PlaceOfHead& place) const {
    return first_ + place.token * step_ + columns_[static_cast<std::size_t>(place.head)];
  }

 private:
  T* first_;
  std::int64_t step_;
  std::vector<std::int64_t> columns_;
};

}  // namespace stretto::kernels::cpu
