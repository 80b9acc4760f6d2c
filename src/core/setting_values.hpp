#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/settings.hpp"

namespace stretto {

// The value of a setting that is a number; throws when it cannot be read as one.
double number_setting(const std::string& name);
// The same of a list of whole numbers, 1 or more with commas between them.
std::vector<std::int64_t> numbers_setting(const std::string& name);

}  // namespace stretto
