#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace apps {

// The bytes of the valid UTF-8 character with which the text begins; 0 where it begins with none.
std::size_t character_length(std::string_view text);
// How much of the text's beginning is valid UTF-8.
std::size_t valid_length(std::string_view text);

// The character with which a text begins, which must be valid UTF-8.
std::uint32_t first_character(std::string_view text);
std::string utf8(std::uint32_t character);

// Unicode's property White_Space, which is \s of Rust's and Oniguruma's patterns.
bool is_white_space(std::uint32_t character);

}  // namespace apps
