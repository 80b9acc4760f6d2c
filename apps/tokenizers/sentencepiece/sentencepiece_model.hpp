#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// The contents of a sentencepiece model (sentencepiece_model.proto). GGUF files of Llama 2's kind have the same.
struct SentencePieceModel {
  enum Type : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    std::int32_t type = normal;
  };
  enum Kind : std::int32_t { unigram = 1, bpe = 2, word = 3, character = 4 };

  std::vector<Piece> pieces;
  std::int32_t kind = unigram;
  bool has_byte_fallback = false;
  bool adds_dummy_prefix = true, removes_extra_spaces = true, escapes_spaces = true, puts_spaces_behind = false;
  std::string charsmap;                            // empty: identity
  std::string unknown_surface = " \xe2\x81\x87 ";  // what the unknown piece writes
  std::optional<std::int32_t> beginning, end;      // <s> and </s>
};

// Throws Error(io), in one sentence that names the file and what a model has that is not served: words or characters as
// pieces, or spaces behind words.
TokenizerParts parts_of(SentencePieceModel model, const std::string& path);

}  // namespace apps
