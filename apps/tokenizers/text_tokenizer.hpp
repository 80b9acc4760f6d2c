#pragma once
#include <memory>

#include "apps/tokenizers/models/token_model.hpp"
#include "apps/tokenizers/text/added_tokens.hpp"
#include "apps/tokenizers/text/normalizer.hpp"
#include "apps/tokenizers/text/splitter.hpp"
#include "apps/tokenizers/tokenizer.hpp"

namespace apps {

// A decoder's way with the space that encoding puts before a text: it takes one off again at the text's beginning, behind
// special tokens, too, or never.
enum class LeadingSpace { stays, goes_at_beginning, goes_behind_special };

// The parts of a tokenizer, which each kind of file says in its own way.
struct TokenizerParts {
  std::string description;
  std::vector<std::string> texts;  // what each token writes into a decoded text
  std::vector<AddedToken> added;
  Normalizer normalizer;
  Splitter splitter;
  std::unique_ptr<TokenModel> model;
  LeadingSpace leading_space = LeadingSpace::stays;
  std::optional<std::int32_t> beginning, end;
  std::string chat_template{};
};

// A tokenizer of a file: a text is cut at added tokens, normalized, split into pieces, and each piece is encoded by the
// model. A byte that belongs to no valid UTF-8 character becomes the token of that byte, where the vocabulary has one.
class TextTokenizer : public Tokenizer {
 public:
  // With `finds_special` false, special tokens in a text are text: nobody's text ends a document, or begins one.
  TextTokenizer(TokenizerParts parts, bool finds_special);

  void encode_pieces(std::string_view text, const TakeTokens& take) override { encode_text(text, true, take); }
  std::vector<std::int32_t> encode_more(const std::string& text) override;
  std::int64_t left_out() const override { return parts_.model->left_out(); }
  // Tokens that are no text (byte tokens, special tokens) write their bytes or names. Throws Error(invalid_argument) for a
  // token beyond the vocabulary.
  std::string text_of(const std::vector<std::int32_t>& tokens, bool begins) const override;
  std::optional<std::int32_t> beginning_of_text() const override { return parts_.beginning; }
  std::optional<std::int32_t> end_of_text() const override { return parts_.end; }
  std::optional<std::int32_t> special_token(std::string_view name) const override;
  std::string chat_template() const override { return parts_.chat_template; }
  std::int64_t size() const override { return static_cast<std::int64_t>(parts_.texts.size()); }
  std::string description() const override;

 private:
  void encode_text(std::string_view text, bool begins, const TakeTokens& take);
  void encode_section(std::string_view text, bool begins, const TakeTokens& take);

  TokenizerParts parts_;
  AddedTokens added_, added_to_normalized_;
  std::vector<bool> is_special_;  // by token
};

}  // namespace apps
