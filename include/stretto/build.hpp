#pragma once
#include <string>
#include <utility>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

STRETTO_API std::string build_version();
// The optional parts of the build: name, and version or "no".
STRETTO_API std::vector<std::pair<std::string, std::string>> build_parts();
// Highway's name of the vector instructions that host kernels use: AVX3 (AVX-512), AVX2, or SCALAR for none. Throws
// Error(invalid_argument) if STRETTO_CPU_LEVEL names no level.
STRETTO_API std::string vector_target();
// The instruction set that each library below host kernels uses, such as {"Highway", "AVX2"}, {"oneDNN", "AVX2"},
// {"OpenBLAS", "Haswell"}. STRETTO_CPU_LEVEL caps the first two; OpenBLAS chooses when it is loaded, and only
// OPENBLAS_CORETYPE caps it. Throws like vector_target().
STRETTO_API std::vector<std::pair<std::string, std::string>> instruction_sets();

}  // namespace stretto
