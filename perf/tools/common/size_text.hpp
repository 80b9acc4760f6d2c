#pragma once
#include <cstdint>
#include <string>

namespace perf {

// Bytes from text like 96, 4K, 32M, 1G or 1GiB (powers of 1024), at most 2^50. Throws Error(invalid_argument) in one
// sentence that names the flag.
std::int64_t bytes_from_text(const char* flag, const std::string& text);
// 1536 is "1.5 KiB".
std::string in_units(double bytes);

}  // namespace perf
