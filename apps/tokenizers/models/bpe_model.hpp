#pragma once
#include <string>
#include <unordered_map>

#include "apps/tokenizers/models/token_model.hpp"
#include "apps/tokenizers/models/word_cache.hpp"
#include "apps/tokenizers/text/prefix_trie.hpp"

namespace apps {

// Byte pair encoding (Sennrich et al. 2016): a piece is divided into bytes or characters, and neighbours are merged, the
// pair of the lowest rank first and of equal ones the leftmost.
struct BpeRules {
  struct Merge {
    std::int32_t left, right, result;
    std::int32_t rank;
  };
  std::vector<Merge> merges;
  bool begins_with_bytes = true;  // each byte's token is in unknown.bytes; else characters, by `characters`
  std::unordered_map<std::string, std::int32_t> characters;  // symbols; from `tokens` on they are parts of tokens only
  std::int32_t tokens = 0;                                   // how many there are
  UnknownText unknown;
  std::unordered_map<std::string, std::int32_t> whole;  // pieces that are taken as they are, without merging
  PrefixTrie frozen;                                    // words that are symbols by themselves, and never merged
  std::vector<bool> unused;  // tokens that are divided again into what they were merged from; empty: none
};

// A rule for each two tokens that make up a third, as tiktoken and sentencepiece merge: `ranks` are the tokens' (-1: neither
// merged nor a part). To the characters of tokens, `rules.characters` gets those that are no tokens themselves.
void add_merges_of_parts(BpeRules& rules, const std::vector<std::string>& texts, const std::vector<std::int32_t>& ranks);

// Whether no token reaches over the beginning of a marker that follows something else, so that a text can be cut there
// without a change of its tokens.
bool keeps_to_words(const BpeRules& rules, const std::vector<std::string>& texts, const std::string& marker);

class BpeModel : public TokenModel {
 public:
  explicit BpeModel(BpeRules rules);
  std::span<const std::int32_t> tokens_of(std::string_view piece) override;
  std::int64_t left_out() const override { return left_out_; }

 private:
  struct Rule {
    std::int32_t rank, result;
  };
  struct Symbol;
  struct Candidate;
  void merge(std::string_view piece);
  std::vector<Symbol> symbols_of(std::string_view piece);
  std::int32_t symbol_of(std::string_view character) const;
  void append(std::string_view piece, const Symbol& symbol);
  void append_unused(std::int32_t token, int depth);

  BpeRules rules_;
  std::unordered_map<std::uint64_t, Rule> merges_;                                 // by left and right symbol
  std::unordered_map<std::int32_t, std::pair<std::int32_t, std::int32_t>> parts_;  // of unused tokens in this piece
  WordCache cache_;
  std::vector<std::int32_t> merged_;  // what merge() found
  std::int64_t left_out_ = 0;
};

}  // namespace apps
