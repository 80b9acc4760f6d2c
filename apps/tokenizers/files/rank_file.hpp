#pragma once
#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// Whether a text looks like a file of tiktoken's ranks: its first line is base64, a space and a number.
bool looks_like_ranks(std::string_view text);

// Reads tiktoken's ranks: a line for each token, its bytes in base64, a space, and the rank, by which pairs are merged and
// which is the token's number. The file says neither how texts are cut nor what special tokens there are: `family` does,
// gpt2, cl100k, o200k, llama3, qwen or qwen3.5. Throws Error(io), in one sentence that names the file and the line.
TokenizerParts read_ranks(const std::string& path, std::string_view text, const std::string& family);

}  // namespace apps
