#pragma once
#include <string>
#include <utility>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

STRETTO_API std::string build_version();
// The optional parts of the build: name, and version or "no".
STRETTO_API std::vector<std::pair<std::string, std::string>> build_parts();
// The vector instructions that kernels use on this processor, by Highway's name.
STRETTO_API std::string vector_target();

}  // namespace stretto
