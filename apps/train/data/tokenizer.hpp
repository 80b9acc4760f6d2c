#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace apps {

// Turns prompts into tokens, and the tokens of samples into text.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual std::vector<std::int32_t> encode(const std::string& text) = 0;
  virtual std::string decode(const std::vector<std::int32_t>& tokens) const = 0;
  // The token between documents, if there is one.
  virtual std::optional<std::int32_t> end_of_text() const { return std::nullopt; }
  // The token with which a sample without a prompt begins.
  virtual std::int32_t beginning() const = 0;
  // Tokens from here on have no text; samples have none of them.
  virtual std::int64_t size() const = 0;
};

// Each byte is a token.
class ByteTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(const std::string& text) override;
  std::string decode(const std::vector<std::int32_t>& tokens) const override;
  std::int32_t beginning() const override { return '\n'; }
  std::int64_t size() const override { return 256; }
};

// Tokens whose vocabulary is not there: their numbers are the text.
class NumberTokenizer : public Tokenizer {
 public:
  explicit NumberTokenizer(std::int64_t size) : size_(size) {}
  // Throws Error(invalid_argument) for a word that is no token's number.
  std::vector<std::int32_t> encode(const std::string& text) override;
  std::string decode(const std::vector<std::int32_t>& tokens) const override;
  // GPT-2's <|endoftext|>, if the vocabulary reaches that far.
  std::int32_t beginning() const override { return size_ > 50256 ? 50256 : 0; }
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t size_;
};

}  // namespace apps
