#pragma once
#include <string>
#include <vector>

#include "apps/tokenizers/text/splitter.hpp"

namespace apps {

// How known families of tokenizers cut a text into pieces. Each pattern is the family's own, to the letter.
extern const char* const gpt2_pattern;

// Adds the steps of a GGUF file's tokenizer.ggml.pre. False: the name is unknown.
bool add_gguf_steps(const std::string& pre, Splitter& splitter);
// Families whose tokenizers take a piece that is a token as it is, by the same name.
bool takes_whole_pieces(const std::string& pre);

// A rank file of tiktoken says neither how texts are cut nor which special tokens follow its ranks.
struct RankFamily {
  std::string name;
  const char* pattern;
  struct Special {
    std::string content;
    std::int32_t behind;  // its number, less that of the ranks
  };
  std::vector<Special> special;
  std::string beginning, end;  // names of special tokens; empty: none
  bool normalizes = false;     // to NFC
};
const std::vector<RankFamily>& rank_families();

}  // namespace apps
