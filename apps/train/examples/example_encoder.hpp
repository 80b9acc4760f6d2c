#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/tokenizers/tokenizer.hpp"
#include "apps/train/examples/chat_template.hpp"

namespace apps {

// The tokens of an example, and which of them a model should learn to write.
struct CountedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<bool> counts;  // of each token

  void add(std::int32_t token, bool its) {
    tokens.push_back(token);
    counts.push_back(its);
  }
};

// Turns examples into tokens as transformers does, but for special tokens that a text writes: these are text here, so that
// nobody's text ends a turn. A token that reaches from what does not count into what does, counts.
class ExampleEncoder {
 public:
  // The tokenizer must outlive the object. chat_template: a form's name, or empty for the tokenizer's own template, which is
  // looked at when there is a conversation.
  ExampleEncoder(Tokenizer& tokenizer, const std::string& chat_template);

  // A text begins with the token that the tokenizer puts before texts, and ends with the one that ends them, where it has
  // them; a completion always ends with that. Throws Error(io) naming the line, or Error(invalid_argument) for a tokenizer
  // without the tokens or without a template that is served.
  CountedTokens encode(const Example& example, const LineOfFile& where);
  // How conversations were written; empty if there was none.
  std::string chat_description() const { return form_ && used_ ? form_->description() : ""; }

 private:
  const ChatTemplate& form();
  std::int32_t token_of(const std::string& name) const;
  // The text between special tokens: the loss leaves out `before` and counts `after`.
  void add_text(const std::string& before, const std::string& after, CountedTokens& to);
  CountedTokens of_text(const TextExample& example);
  CountedTokens of_completion(const CompletionExample& example);
  CountedTokens of_conversation(const Conversation& conversation, const LineOfFile& where);

  Tokenizer& tokenizer_;
  std::optional<ChatTemplate> form_;
  bool used_ = false;
};

}  // namespace apps
