#pragma once
#include <cstdint>
#include <optional>

namespace stretto {

// Returns `value`, of a class of nlohmann, if it is a whole number from least to most, else nullopt. Json's own conversion
// truncates a number that does not fit, and is undefined for a fraction beyond an int's range.
template <class Json>
std::optional<int> whole_number(const Json& value, int least, int most) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.template get<std::int64_t>();  // negative if value is beyond its range
  return number >= least && number <= most ? std::optional(static_cast<int>(number)) : std::nullopt;
}

}  // namespace stretto
