#include "apps/tokenizers/sentencepiece/sentencepiece_normalizer.hpp"

#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

SentencePieceNormalizer::Part SentencePieceNormalizer::next_part(std::string_view text) const {
  const PrefixTrie::Found found = user_defined.longest(text);
  if (found.length > 0) return {text.substr(0, found.length), found.length};
  if (charsmap) {
    const Charsmap::Found mapped = charsmap->longest(text);
    if (mapped.length > 0) return {mapped.replacement, mapped.length};
  }
  const std::size_t length = character_length(text);
  if (length == 0) return {"\xef\xbf\xbd", 1};
  return {text.substr(0, length), length};
}

// The text up to its first space, so far as no part of it changes.
std::string_view SentencePieceNormalizer::unchanged_word(std::string_view text) const {
  if (charsmap || !user_defined.empty()) return {};
  return text.substr(0, valid_length(text.substr(0, text.find(' '))));
}

std::string SentencePieceNormalizer::normalized(std::string_view text) const {
  if (removes_extra_spaces) {
    while (!text.empty()) {
      const Part part = next_part(text);
      if (part.text != " ") break;
      text.remove_prefix(part.consumed);
    }
  }
  if (text.empty()) return {};
  const std::string space = escapes_spaces ? space_marker : " ";
  std::string result;
  result.reserve(text.size() + text.size() / 2);
  if (adds_dummy_prefix) result += space;
  bool was_space = removes_extra_spaces;
  while (!text.empty()) {
    const std::string_view word = unchanged_word(text);
    if (!word.empty()) {
      result += word;
      was_space = false;
      text.remove_prefix(word.size());
      continue;
    }
    auto [part, consumed] = next_part(text);
    while (was_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) c == ' ' ? result += space : result += c;
    if (!part.empty()) was_space = part.ends_with(' ');
    if (!removes_extra_spaces) was_space = false;
    text.remove_prefix(consumed);
  }
  while (removes_extra_spaces && result.ends_with(space)) result.resize(result.size() - space.size());
  return result;
}

}  // namespace apps
