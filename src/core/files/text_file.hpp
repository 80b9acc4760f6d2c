#pragma once
#include <string>

namespace stretto {

// The text of a file that a person or a tool wrote, of at most 16 MiB. Throws Error(invalid_argument) for one that is
// missing, longer, or no regular file, which might never end: "{what} cannot be read: ...".
std::string text_of_file(const std::string& path, const std::string& what);

// Makes an OutputFile of this text, and its directory. Returns false, and leaves nothing, if it cannot be made.
bool write_text_file(const std::string& path, const std::string& text);

}  // namespace stretto
