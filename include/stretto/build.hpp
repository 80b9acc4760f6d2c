#pragma once
#include <string>
#include <utility>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

STRETTO_API std::string build_version();
// The optional parts of the build. Each pair is a part's name, and its version or "no".
STRETTO_API std::vector<std::pair<std::string, std::string>> build_parts();
// The vector instructions that host kernels use, by Highway's name: AVX3 (AVX-512), AVX2, or SCALAR for none. Throws
// Error(invalid_argument) if the value of STRETTO_CPU_LEVEL is not the name of a level.
STRETTO_API std::string vector_target();
// The instruction sets of the libraries that host kernels call, such as {"Highway", "AVX2"}, {"oneDNN", "AVX2"},
// {"OpenBLAS", "Haswell"}. STRETTO_CPU_LEVEL limits Highway and oneDNN. OpenBLAS chooses its instruction set when it is
// loaded, and only OPENBLAS_CORETYPE limits that choice. Throws like vector_target().
STRETTO_API std::vector<std::pair<std::string, std::string>> instruction_sets();

}  // namespace stretto
