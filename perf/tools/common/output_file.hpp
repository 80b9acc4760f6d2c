#pragma once
#include <string>

namespace perf {

// Before hours of measuring: throws in one sentence where the file that a flag names cannot be opened for writing. A file
// that is there stays as it is.
void check_writable(const char* flag, const std::string& path);
// The whole text, or an error.
void write_file(const char* flag, const std::string& path, const std::string& text);

}  // namespace perf
