#pragma once
#include <cstdint>
#include <string_view>

// The reader and the writer of Megatron-LM's indices share this description.
namespace apps {

constexpr std::string_view megatron_magic("MMIDIDX\0\0", 9);
constexpr std::uint8_t megatron_i32 = 4, megatron_u16 = 8;  // codes of a token's type
constexpr std::int64_t megatron_narrow_vocabulary = 65500;  // below it, tokens have 16 bits

}  // namespace apps
