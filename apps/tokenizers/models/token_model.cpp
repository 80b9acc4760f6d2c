#include "apps/tokenizers/models/token_model.hpp"

#include <algorithm>

namespace apps {

bool UnknownText::has_bytes_of(std::string_view text) const {
  return !bytes.empty() &&
         std::ranges::all_of(text, [&](char byte) { return bytes[static_cast<unsigned char>(byte)] >= 0; });
}

void UnknownText::append(std::string_view text, std::vector<std::int32_t>& tokens) const {
  if (has_bytes_of(text)) {
    for (const char byte : text) tokens.push_back(bytes[static_cast<unsigned char>(byte)]);
  } else if (unknown && (!fuses || tokens.empty() || tokens.back() != *unknown)) {
    tokens.push_back(*unknown);
  }
}

}  // namespace apps
