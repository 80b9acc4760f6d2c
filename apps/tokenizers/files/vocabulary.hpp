#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "apps/tokenizers/models/bpe_model.hpp"
#include "apps/tokenizers/text/splitter.hpp"

namespace apps {

// The tokens of a file by number and by name, as the file writes them.
class Vocabulary {
 public:
  // `path` names the file in errors. Of tokens that are alike the first counts; an empty one is a number without a token.
  Vocabulary(std::string path, std::vector<std::string> tokens);

  const std::string& path() const { return path_; }
  const std::vector<std::string>& tokens() const { return tokens_; }
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  // -1: none.
  std::int32_t find(const std::string& token) const;
  // Throws Error(io), which says what needs the token, where there is none.
  std::int32_t number_of(const std::string& token, const std::string& wanted_by) const;

  // The rule that merges two tokens into the one that is written as both; the next rank. `where` is for errors.
  void add_merge(const std::string& left, const std::string& right, const std::string& where, BpeRules& rules) const;
  // The same, of "left right".
  void add_merge(std::string_view line, const std::string& where, BpeRules& rules) const;

 private:
  std::string path_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t> numbers_;
};

// The bytes for which tokens in GPT-2's alphabet (ByteAlphabet) stand. Tokens with other characters were added
// later, and stand for themselves.
std::vector<std::string> byte_level_texts(const Vocabulary& vocabulary);
// The token of each byte alone, -1: none.
std::vector<std::int32_t> byte_level_tokens(const Vocabulary& vocabulary);
// The tokens of bytes that are named <0x00> to <0xFF>, as sentencepiece names them; -1: none.
std::vector<std::int32_t> named_byte_tokens(const Vocabulary& vocabulary);
// The byte that such a name stands for; -1: it is no such name.
int named_byte(const std::string& token);

// Cuts texts that no pattern cuts before spaces and lines, if no token reaches over these: words can be remembered, texts of
// any length cannot.
void cut_at_spaces_and_lines(const BpeRules& rules, const Vocabulary& vocabulary, Splitter& splitter);

}  // namespace apps
