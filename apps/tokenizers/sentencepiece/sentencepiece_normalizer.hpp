#pragma once
#include <optional>
#include <string>

#include "apps/tokenizers/sentencepiece/charsmap.hpp"
#include "apps/tokenizers/text/prefix_trie.hpp"

namespace apps {

// The character that stands for a space in the pieces of sentencepiece, U+2581.
inline constexpr const char* space_marker = "\xe2\x96\x81";

// A text as sentencepiece normalizes it before it looks for pieces: characters by the charsmap, bytes that are no UTF-8 as
// U+FFFD, spaces as markers, and one before the text. User-defined pieces stay as they are.
struct SentencePieceNormalizer {
  std::optional<Charsmap> charsmap;  // none: identity
  PrefixTrie user_defined;
  bool adds_dummy_prefix = true, removes_extra_spaces = true, escapes_spaces = true;

  std::string normalized(std::string_view text) const;

 private:
  struct Part {
    std::string_view text;
    std::size_t consumed;
  };
  Part next_part(std::string_view text) const;
  std::string_view unchanged_word(std::string_view text) const;
};

}  // namespace apps
