#pragma once
#include <string>

namespace perf {

// Throws in one sentence if the file that a flag names cannot be opened for writing; called before hours of measuring. An
// existing file stays as it is.
void check_writable(const char* flag, const std::string& path);
// Writes the whole text, or throws.
void write_file(const char* flag, const std::string& path, const std::string& text);

}  // namespace perf
