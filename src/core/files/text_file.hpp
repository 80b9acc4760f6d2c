#pragma once
#include <string>

namespace stretto {

// Returns the contents of a file of at most 16 MiB. Throws Error(invalid_argument) "{what} cannot be read: ..." if the file
// is missing, longer, or no regular file (to read a device or a pipe might never end).
std::string text_of_file(const std::string& path, const std::string& what);

// Writes `text` as an OutputFile, and makes its directory. Returns false, and leaves no file, if that fails.
bool write_text_file(const std::string& path, const std::string& text);

}  // namespace stretto
