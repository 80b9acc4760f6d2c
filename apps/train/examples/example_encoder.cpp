#include "apps/train/examples/example_encoder.hpp"

#include <algorithm>

#include "apps/common/fail.hpp"

namespace apps {

ExampleEncoder::ExampleEncoder(Tokenizer& tokenizer, const std::string& chat_template) : tokenizer_(tokenizer) {
  if (!chat_template.empty()) form_ = chat_template_named(chat_template);
}

CountedTokens ExampleEncoder::encode(const Example& example, const LineOfFile& where) {
  if (const auto* const text = std::get_if<TextExample>(&example)) return of_text(*text);
  if (const auto* const completion = std::get_if<CompletionExample>(&example)) return of_completion(*completion);
  return of_conversation(std::get<Conversation>(example), where);
}

const ChatTemplate& ExampleEncoder::form() {
  used_ = true;
  if (form_) return *form_;
  require(!tokenizer_.chat_template().empty(),
          "The data have conversations, and the tokenizer says in no chat_template how these are written; give "
          "--chat-template chatml, llama2 or llama3.");
  return form_.emplace(recognised_chat_template(tokenizer_.chat_template()));
}

std::int32_t ExampleEncoder::token_of(const std::string& name) const {
  const bool begins = name == beginning_token || name == llama3_beginning_token;
  std::optional<std::int32_t> token = tokenizer_.special_token(name);
  if (!token && begins) token = tokenizer_.beginning_of_text();
  if (!token && name == end_token) token = tokenizer_.end_of_text();
  require(token.has_value(), "Conversations are written as {} with {}, and the tokenizer has no such special token.",
          form_->description(), name);
  return *token;
}

// Tokens may reach over the boundary, as both line feeds of "assistant\n" and "\nYes" do: what the tokens before it would be
// alone, does not count.
void ExampleEncoder::add_text(const std::string& before, const std::string& after, CountedTokens& to) {
  const bool begins = to.tokens.empty();
  const auto encoded = [&](const std::string& text) {
    return begins ? tokenizer_.encode(text) : tokenizer_.encode_more(text);
  };
  const std::vector<std::int32_t> all = encoded(before + after);
  const std::vector<std::int32_t> alone = after.empty() ? all : encoded(before);
  const auto common = std::ranges::mismatch(all, alone).in1 - all.begin();
  for (std::int64_t i = 0; i < std::ssize(all); ++i) to.add(all[static_cast<std::size_t>(i)], i >= common);
}

CountedTokens ExampleEncoder::of_text(const TextExample& example) {
  CountedTokens result;
  const std::optional<std::int32_t> beginning = tokenizer_.beginning_of_text(), end = tokenizer_.end_of_text();
  for (const std::int32_t token : tokenizer_.encode(example.text)) result.add(token, true);
  if (result.tokens.empty()) return result;
  if (beginning) {
    result.tokens.insert(result.tokens.begin(), *beginning);
    result.counts.insert(result.counts.begin(), false);
  }
  if (end) result.add(*end, true);
  return result;
}

CountedTokens ExampleEncoder::of_completion(const CompletionExample& example) {
  const std::optional<std::int32_t> end = tokenizer_.end_of_text();
  require(end.has_value(),
          "The data have completions, and the tokenizer names no token that ends one; give another tokenizer.");
  CountedTokens result;
  add_text(example.prompt, example.completion, result);
  if (const std::optional<std::int32_t> beginning = tokenizer_.beginning_of_text()) {
    result.tokens.insert(result.tokens.begin(), *beginning);
    result.counts.insert(result.counts.begin(), false);
  }
  result.add(*end, true);
  return result;
}

CountedTokens ExampleEncoder::of_conversation(const Conversation& conversation, const LineOfFile& where) {
  CountedTokens result;
  std::string before, after;
  for (const ChatPiece& piece : written(form(), conversation, where)) {
    if (!piece.is_token) {
      (piece.counts ? after : before) += piece.text;
      continue;
    }
    add_text(before, after, result);
    before.clear();
    after.clear();
    result.add(token_of(piece.text), piece.counts);
  }
  add_text(before, after, result);
  return result;
}

}  // namespace apps
