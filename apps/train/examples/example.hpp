#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace apps {

// The place of an example, which errors name: "chat.jsonl, line 3".
struct LineOfFile {
  std::string path;
  std::int64_t number = 0;  // from 1 on
  std::string text() const;
};

// The three kinds of a line: {"text": "..."}, of which every token counts; {"prompt": "...", "completion": "..."}, of which
// the completion does; and {"messages": [{"role": "user", "content": "..."}, ...]}, of which what the assistant says does.
struct TextExample {
  std::string text;
};
struct CompletionExample {
  std::string prompt, completion;
};
enum class Role : std::uint8_t { system, user, assistant };
const char* name(Role role);
struct Message {
  Role role;
  std::string content;
};
struct Conversation {
  std::vector<Message> messages;
};
using Example = std::variant<TextExample, CompletionExample, Conversation>;

// Reads a line. Other keys of the object are the data's own, and are left alone; in a message, there may be none. Throws
// Error(io) in one sentence that names the line and what is wrong with it.
Example example_of(std::string_view line, const LineOfFile& where);

}  // namespace apps
