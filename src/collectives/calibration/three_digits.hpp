#pragma once
#include <fmt/format.h>

#include <string>

namespace stretto {

// Rounds to the digits that a tuning file keeps: further digits of a measurement are noise.
inline double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

}  // namespace stretto
