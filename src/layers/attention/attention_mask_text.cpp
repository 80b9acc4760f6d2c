#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "core/fail.hpp"
#include "stretto/layers/attention.hpp"

namespace stretto {

kernels::AttentionMask attention_mask_from_text(const std::string& text) {
  kernels::AttentionMask mask;
  if (text == "dense") return mask;
  const std::map<std::string, std::int64_t*> places = {
      {"window", &mask.window}, {"strided", &mask.stride}, {"global", &mask.global}};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t colon = std::min(item.find(':'), item.size());
    const auto place = places.find(item.substr(0, colon));
    std::int64_t number = 0;
    const char* const last = item.data() + item.size();
    const bool has_number = colon + 1 < item.size() &&
                            std::from_chars(item.data() + colon + 1, last, number) == std::from_chars_result{last, {}};
    require(place != places.end() && has_number && number >= 1 && *place->second == 0,
            "'{}' is no mask of attention; give dense, or window:W, strided:S and global:G of at least 1 each, joined by +.",
            text);
    *place->second = number;
    begin = end + 1;
  }
  require(mask.sparse(),
          "'{}' thins nothing out: all tokens see all earlier ones; add window:W or strided:S, or give dense.", text);
  return mask;
}

std::string to_text(const kernels::AttentionMask& mask) {
  if (!mask.sparse()) return "dense";
  std::string text;
  for (const auto& [name, number] : {std::pair{"window", mask.window}, {"strided", mask.stride}, {"global", mask.global}}) {
    if (number > 0) text += fmt::format("{}{}:{}", text.empty() ? "" : "+", name, number);
  }
  return text;
}

}  // namespace stretto
