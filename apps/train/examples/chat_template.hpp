#pragma once
#include <string>
#include <vector>

#include "apps/train/examples/example.hpp"

namespace apps {

// How a model's conversations are written. Templates are programs in Jinja; those that people use are recognised by their
// text, and none is run.
struct ChatTemplate {
  enum class Kind : std::uint8_t {
    chatml,  // <|im_start|>role, a line feed, content, <|im_end|>, a line feed (SmolLM2, Qwen)
    llama2,  // <s>[INST] user [/INST] assistant </s>, the system message as <<SYS>> in the first user's
    llama3,  // <|start_header_id|>role<|end_header_id|>, two line feeds, content, <|eot_id|>
  };
  Kind kind = Kind::chatml;
  std::string default_system;  // chatml: what the system says where a conversation does not; empty: nothing
  std::string description() const;
};

// chatml, llama2 or llama3. Throws Error(invalid_argument) naming these.
ChatTemplate chat_template_named(const std::string& name);
// Recognises a template's text. Throws Error(invalid_argument) for any other, in one sentence that says what it has.
ChatTemplate recognised_chat_template(const std::string& jinja);

// A part of a written conversation: a special token by its name, or text between these.
struct ChatPiece {
  std::string text;
  bool is_token = false;
  bool counts = false;  // what the assistant says, and the token that ends it
};

// The names of the tokens that begin and end a text in templates, which each tokenizer calls as it likes.
inline constexpr const char* beginning_token = "<s>";
inline constexpr const char* end_token = "</s>";
inline constexpr const char* llama3_beginning_token = "<|begin_of_text|>";

// Throws Error(io) that names the line for a conversation that the template does not allow: Llama 2's takes turns.
std::vector<ChatPiece> written(const ChatTemplate& form, const Conversation& conversation, const LineOfFile& where);

}  // namespace apps
