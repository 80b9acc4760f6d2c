#include "common/size_text.hpp"

#include <fmt/format.h>

#include <cctype>
#include <iterator>

#include "common/fail.hpp"

namespace perf {

std::int64_t bytes_from_text(const char* flag, const std::string& text) {
  const std::string digits = text.substr(0, text.find_first_not_of("0123456789"));
  const std::string suffix = text.substr(digits.size());
  const std::string known = "KMG";
  const std::size_t power = suffix.empty() ? 0 : known.find(static_cast<char>(std::toupper(suffix[0]))) + 1;
  require(!digits.empty() && (suffix.size() <= 1 || suffix.substr(1) == "iB") && (suffix.empty() || power > 0),
          "{} '{}' is no size; give bytes, or a number followed by K, M or G, as in 80G or 80GiB.", flag, text);
  constexpr std::int64_t most = std::int64_t{1} << 50;
  // Fewer than 19 digits fit.
  require(digits.size() < 19 && std::stoll(digits) <= most >> (10 * power),
          "{} '{}' is more than 2^50 bytes, the largest size there is; give less.", flag, text);
  return std::stoll(digits) << (10 * power);
}

std::string in_units(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, units[unit]);
}

}  // namespace perf
