#pragma once
#include <functional>
#include <optional>

#include "apps/tokenizers/text/prefix_trie.hpp"

namespace apps {

// A token that is looked for in a text before anything else, as tokenizer.json's added_tokens are.
struct AddedToken {
  std::string content;
  std::int32_t token = 0;
  bool is_special = false;                         // control tokens, which a text of others must not be able to write
  bool single_word = false;                        // not within a word
  bool strips_left = false, strips_right = false;  // takes the white space beside it
  bool normalized = false;                         // looked for in the normalized text
};

class AddedTokens {
 public:
  // With `finds_special` false, special tokens in a text are text.
  explicit AddedTokens(std::vector<AddedToken> tokens = {}, bool finds_special = false);

  // Hands over what lies between the tokens, and the tokens.
  using Take = std::function<void(std::string_view section, std::optional<std::int32_t> token)>;
  void split(std::string_view text, const Take& take) const;

 private:
  bool counts(const AddedToken& token, std::string_view text, std::size_t begin) const;
  std::vector<AddedToken> tokens_;
  PrefixTrie trie_;
  bool finds_special_;
};

}  // namespace apps
