#pragma once
#include <string>

#include "apps/tokenizers/models/token_model.hpp"
#include "apps/tokenizers/text/prefix_trie.hpp"

namespace apps {

// sentencepiece's unigram language model (Kudo 2018): of all ways to divide a text into tokens, the most likely one
// (Viterbi).
struct UnigramPieces {
  std::vector<std::string> texts;
  std::vector<float> scores;       // logarithms of probabilities
  std::vector<bool> can_be_used;   // others are never chosen
  std::vector<bool> user_defined;  // always chosen where they occur
  float smallest = 0;              // score of an ordinary token
  UnknownText unknown;
};

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(UnigramPieces pieces);
  // The text must be valid UTF-8.
  std::span<const std::int32_t> tokens_of(std::string_view piece) override;
  std::int64_t left_out() const override { return 0; }  // sentencepiece's models always have a token for the unknown

 private:
  struct Best {  // way to a byte of the text
    float score = 0;
    std::int32_t token = -1;  // the last one; -1 with a beginning: unknown
    std::ptrdiff_t begin = -1;
  };
  void extend(std::string_view text, std::size_t at);

  UnigramPieces pieces_;
  PrefixTrie trie_;
  std::vector<Best> best_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace apps
