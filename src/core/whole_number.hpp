#pragma once
#include <cstdint>
#include <optional>

namespace stretto {

// The whole number from least to most that value, of a class of nlohmann, is; nullopt if it is anything else. Json's own
// conversion cuts off what does not fit, and that of a fraction beyond an int's range is undefined.
template <class Json>
std::optional<int> whole_number(const Json& value, int least, int most) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.template get<std::int64_t>();  // negative if value is beyond its range
  return number >= least && number <= most ? std::optional(static_cast<int>(number)) : std::nullopt;
}

}  // namespace stretto
