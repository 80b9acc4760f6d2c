#pragma once
#include <string>
#include <utility>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

STRETTO_API std::string build_version();
// What was found when the library was configured: name, and version or "no".
STRETTO_API std::vector<std::pair<std::string, std::string>> build_parts();
// The vector instructions that kernels use on this processor.
STRETTO_API std::string vector_target();

}  // namespace stretto
