#pragma once
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "core/fail.hpp"

// Names of the values of an enumeration, in the order of the values.
namespace stretto {

template <class Enum, std::size_t Count>
const char* name_in(const char* const (&names)[Count], Enum value) {
  const auto i = static_cast<std::size_t>(value);
  return i < Count ? names[i] : "unknown";
}

// Throws Error(invalid_argument) if no value has that name. what: of the enumeration, such as "algorithm".
template <class Enum, std::size_t Count>
Enum value_in(const char* const (&names)[Count], const std::string& text, const char* what) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  require(found != std::end(names), "'{}' is no {}; choose one of {}.", text, what, fmt::join(names, ", "));
  return static_cast<Enum>(found - std::begin(names));
}

}  // namespace stretto
