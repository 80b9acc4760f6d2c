#pragma once
#include <string>

#include "stretto/settings.hpp"

namespace stretto {

// The value of a setting that is a number; throws when it cannot be read as one.
double number_setting(const std::string& name);

}  // namespace stretto
