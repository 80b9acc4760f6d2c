#pragma once
#include <string>

#include "stretto/output_file.hpp"

namespace perf {

// Throws in one sentence if the file that a flag names cannot be written; called before hours of measuring.
inline void check_writable(const std::string& flag, const std::string& path) {
  stretto::check_output_file(path, flag + " " + path);
}
inline void write_file(const std::string& flag, const std::string& path, const std::string& text) {
  stretto::write_output_file(path, text, flag + " " + path);
}

}  // namespace perf
