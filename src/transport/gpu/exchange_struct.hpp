#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "transport/gpu/gpu_links.hpp"

namespace stretto {

// Collective: sends this member's structure to all, and returns each member's, by member. T has no pointers, and texts of a
// fixed size.
template <class T>
std::vector<T> exchange_struct(const ExchangeBytes& exchange_bytes, const T& mine) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&mine);
  std::vector<T> all;
  for (const Bytes& one : exchange_bytes(Bytes(bytes, bytes + sizeof mine))) {
    T& said = all.emplace_back();
    std::memcpy(&said, one.data(), sizeof said);
  }
  return all;
}

// Copies as much of the text as fits.
template <std::size_t size>
void put(std::array<char, size>& place, const std::string& text) {
  std::memcpy(place.data(), text.data(), std::min(text.size(), size - 1));
}

}  // namespace stretto
