#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// The vocabulary in a GGUF file's metadata: each member is the value of the key beside it, empty where the file has none.
struct GgufVocabulary {
  std::string model;                                    // tokenizer.ggml.model: gpt2 or llama
  std::string pre;                                      // tokenizer.ggml.pre: how gpt2's texts are cut
  std::vector<std::string> tokens;                      // tokenizer.ggml.tokens
  std::vector<std::string> merges;                      // tokenizer.ggml.merges, gpt2's: "left right"
  std::vector<float> scores;                            // tokenizer.ggml.scores, llama's
  std::vector<std::int32_t> types;                      // tokenizer.ggml.token_type, numbered as SentencePieceModel::Type
  std::optional<std::int32_t> beginning, end, unknown;  // tokenizer.ggml.bos_token_id, .eos_token_id, .unknown_token_id
  std::optional<bool> adds_beginning;                   // tokenizer.ggml.add_bos_token
  std::optional<bool> adds_space_prefix;                // tokenizer.ggml.add_space_prefix
  std::string chat_template;                            // tokenizer.chat_template
};

// Throws Error(io), in one sentence that names the file, for one that is no GGUF file.
GgufVocabulary read_gguf_vocabulary(const std::string& path);

// Throws Error(io), in one sentence that names the file, for a model or a `pre` that is unknown, and for arrays that do not
// go together.
TokenizerParts parts_of(const GgufVocabulary& vocabulary, const std::string& path);

}  // namespace apps
