#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace apps {

// A vocabulary of byte pair encoding (Sennrich et al. 2016) over bytes, as GPT-2 has it (Radford et al. 2019).
struct BpeVocabulary {
  std::vector<std::string> tokens;  // the bytes of each
  struct Merge {
    std::int32_t left, right, result;
  };
  std::vector<Merge> merges;                // the first in the list comes first
  std::vector<std::int32_t> byte_tokens;    // of each of the 256 bytes alone
  std::optional<std::int32_t> end_of_text;  // <|endoftext|>
};

// Reads OpenAI's encoder.json and vocab.bpe, which Hugging Face calls vocab.json and merges.txt. Throws Error(io), in one
// sentence that names the file, for what is no such vocabulary.
BpeVocabulary read_bpe_vocabulary(const std::string& vocabulary_path, const std::string& merges_path);

}  // namespace apps
