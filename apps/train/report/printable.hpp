#pragma once
#include <string>
#include <string_view>

namespace apps {

// The text for a terminal: \xNN stands for each byte of a control character, newlines and tabs aside, and for each that
// belongs to no valid UTF-8.
std::string printable(std::string_view text);

}  // namespace apps
