#pragma once
#include <fmt/format.h>

#include <string>

namespace stretto {

// As a tuning file has its numbers: more digits of a measurement are noise.
inline double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

}  // namespace stretto
