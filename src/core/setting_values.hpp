#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/settings.hpp"

namespace stretto {

// These read a setting of the named kind, and throw Error(invalid_argument) if its value is not of that kind.
double number_setting(const std::string& name);
// One or more whole numbers with commas between them.
std::vector<std::int64_t> numbers_setting(const std::string& name);
std::string choice_setting(const std::string& name);

}  // namespace stretto
