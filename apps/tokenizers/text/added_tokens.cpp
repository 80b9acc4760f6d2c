#include "apps/tokenizers/text/added_tokens.hpp"

#include <algorithm>

#include "apps/tokenizers/text/pattern.hpp"
#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

PrefixTrie trie_of(const std::vector<AddedToken>& tokens) {
  std::vector<PrefixTrie::Word> words;
  for (std::size_t i = 0; i < tokens.size(); ++i) words.push_back({tokens[i].content, static_cast<std::int32_t>(i)});
  return PrefixTrie(std::move(words));
}

// The valid character that ends the text; empty where there is none.
std::string_view last_character(std::string_view text) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, text.size()); ++length) {
    const std::string_view character = text.substr(text.size() - length);
    if (character_length(character) == length) return character;
  }
  return {};
}

bool is_space(std::string_view character) { return !character.empty() && is_white_space(first_character(character)); }

// Rust's \w.
bool is_word_character(std::string_view character) {
  static const Pattern word("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]");
  return !character.empty() && word.find(character, 0);
}

std::size_t white_space_at_end(std::string_view text) {
  std::size_t bytes = 0;
  for (auto last = last_character(text); is_space(last); last = last_character(text.substr(0, text.size() - bytes))) {
    bytes += last.size();
  }
  return bytes;
}

std::size_t white_space_at_beginning(std::string_view text) {
  std::size_t bytes = 0;
  while (is_space(text.substr(bytes, character_length(text.substr(bytes))))) {
    bytes += character_length(text.substr(bytes));
  }
  return bytes;
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, bool finds_special)
    : tokens_(std::move(tokens)), trie_(trie_of(tokens_)), finds_special_(finds_special) {}

bool AddedTokens::counts(const AddedToken& token, std::string_view text, std::size_t begin) const {
  if (token.is_special && !finds_special_) return false;
  if (!token.single_word) return true;
  const std::string_view after = text.substr(begin + token.content.size());
  return !is_word_character(last_character(text.substr(0, begin))) &&
         !is_word_character(after.substr(0, character_length(after)));
}

// The leftmost token counts, and of those the longest; one that does not count hides what lies within it.
void AddedTokens::split(std::string_view text, const Take& take) const {
  std::size_t taken = 0;
  for (std::size_t at = 0; !trie_.empty() && at < text.size();) {
    const PrefixTrie::Found found = trie_.begins_with(text[at]) ? trie_.longest(text.substr(at)) : PrefixTrie::Found{};
    if (found.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found.value)];
    std::size_t begin = at, end = at + found.length;
    at = end;
    if (!counts(token, text, begin)) continue;
    if (token.strips_left) begin -= white_space_at_end(text.substr(taken, begin - taken));
    if (token.strips_right) end += white_space_at_beginning(text.substr(end));
    if (taken < begin) take(text.substr(taken, begin - taken), std::nullopt);
    take(text.substr(begin, end - begin), token.token);
    taken = at = end;
  }
  if (taken < text.size()) take(text.substr(taken), std::nullopt);
}

}  // namespace apps
