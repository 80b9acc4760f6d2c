#pragma once
#include "apps/tokenizers/text_tokenizer.hpp"

namespace apps {

// Reads OpenAI's encoder.json and vocab.bpe, which Hugging Face calls vocab.json and merges.txt. Throws Error(io), in one
// sentence that names the file, for what is no such vocabulary.
TokenizerParts read_gpt2_files(const std::string& vocabulary_path, const std::string& merges_path);

}  // namespace apps
