#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "apps/tokenize/bpe/vocabulary.hpp"
#include "apps/train/data/tokenizer.hpp"

namespace apps {

// GPT-2's byte pair encoding. Any bytes can be encoded, and come back from decode() as they were: valid UTF-8 is cut as
// GPT-2 cuts it, and a byte outside of it becomes the token of that byte alone. <|endoftext|> in a text is text: encode()
// never returns its token.
class BpeTokenizer : public Tokenizer {
 public:
  // Throws as read_bpe_vocabulary().
  BpeTokenizer(const std::string& vocabulary_path, const std::string& merges_path);

  std::vector<std::int32_t> encode(const std::string& text) override;
  // Hands the tokens over piece by piece, so that a text may be larger than memory.
  void encode(std::string_view text, const std::function<void(std::span<const std::int32_t>)>& take);
  // Throws Error(invalid_argument) for a token beyond the vocabulary.
  std::string decode(const std::vector<std::int32_t>& tokens) const override;
  std::optional<std::int32_t> end_of_text() const override { return vocabulary_.end_of_text; }
  std::int32_t beginning() const override { return vocabulary_.end_of_text.value_or(0); }
  std::int64_t size() const override { return static_cast<std::int64_t>(vocabulary_.tokens.size()); }

 private:
  struct Rule {
    std::int32_t rank, result;
  };
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  struct Span {
    std::size_t first, count;
  };
  std::span<const std::int32_t> tokens_of(std::string_view piece);
  void merge(std::string_view piece);

  BpeVocabulary vocabulary_;
  std::unordered_map<std::uint64_t, Rule> rules_;  // by left and right token
  std::unordered_map<std::string, Span, Hash, std::equal_to<>> cache_;
  std::vector<std::int32_t> cached_;  // the tokens of all pieces in the cache
  std::vector<std::int32_t> merged_;  // what merge() found
};

}  // namespace apps
