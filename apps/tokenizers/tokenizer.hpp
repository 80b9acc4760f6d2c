#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace apps {

// Turns texts into tokens, and tokens into text. An object serves one thread at a time: encoding remembers words.
class Tokenizer {
 public:
  using TakeTokens = std::function<void(std::span<const std::int32_t>)>;

  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the tokens of the text alone: none that a tokenizer puts before or behind a text.
  std::vector<std::int32_t> encode(const std::string& text);
  // The same of a text that goes on behind other tokens, before which no tokenizer puts a space.
  virtual std::vector<std::int32_t> encode_more(const std::string& text) { return encode(text); }
  // Hands the same tokens over piece by piece, so that a text may be larger than memory.
  virtual void encode_pieces(std::string_view text, const TakeTokens& take) = 0;

  // How many bytes of the texts had no token up to now, and were left out.
  virtual std::int64_t left_out() const { return 0; }

  std::string decode(const std::vector<std::int32_t>& tokens) const { return text_of(tokens, true); }
  // Like decode(). With `begins` false the tokens go on with a text, so that a space at their beginning stays.
  virtual std::string text_of(const std::vector<std::int32_t>& tokens, bool begins) const = 0;

  // The token that the tokenizer's own rule puts before each text (Llama's <s>), if there is one.
  virtual std::optional<std::int32_t> beginning_of_text() const { return std::nullopt; }
  // The token that ends a text (GPT-2's <|endoftext|>), if there is one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  // The special token of this name, if there is one: texts cannot write it.
  virtual std::optional<std::int32_t> special_token(std::string_view) const { return std::nullopt; }
  // How the model's conversations are written, in Jinja; empty where no file says it.
  virtual std::string chat_template() const { return {}; }
  // The token before each document of a file of tokens, if there is one: a model that is trained on the file then sees its
  // documents begin as its prompts do.
  std::optional<std::int32_t> separator() const { return beginning_of_text() ? beginning_of_text() : end_of_text(); }
  // The token with which a sample without a prompt begins.
  virtual std::int32_t beginning() const { return separator().value_or(0); }
  // Tokens from here on have no text; samples have none of them.
  virtual std::int64_t size() const = 0;
  // The file's kind and the model's, for people.
  virtual std::string description() const = 0;
};

// Each byte is a token.
class ByteTokenizer : public Tokenizer {
 public:
  void encode_pieces(std::string_view text, const TakeTokens& take) override;
  std::string text_of(const std::vector<std::int32_t>& tokens, bool begins) const override;
  std::int32_t beginning() const override { return '\n'; }
  std::int64_t size() const override { return 256; }
  std::string description() const override { return "bytes"; }
};

// Tokens whose vocabulary is not there: their numbers are the text.
class NumberTokenizer : public Tokenizer {
 public:
  explicit NumberTokenizer(std::int64_t size) : size_(size) {}
  // Throws Error(invalid_argument) for a word that is no token's number.
  void encode_pieces(std::string_view text, const TakeTokens& take) override;
  std::string text_of(const std::vector<std::int32_t>& tokens, bool begins) const override;
  // GPT-2's <|endoftext|>, if the vocabulary reaches that far.
  std::int32_t beginning() const override { return size_ > 50256 ? 50256 : 0; }
  std::int64_t size() const override { return size_; }
  std::string description() const override { return "numbers of tokens"; }

 private:
  std::int64_t size_;
};

}  // namespace apps
