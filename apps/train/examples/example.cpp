#include "apps/train/examples/example.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "apps/common/fail.hpp"

namespace apps {

using nlohmann::json;
using stretto::ErrorCode;

namespace {

constexpr std::array<const char*, 3> role_names = {"system", "user", "assistant"};
constexpr std::size_t longest_quotation = 40;

template <class... Args>
[[noreturn]] void fail_at(const LineOfFile& where, fmt::format_string<Args...> what, Args&&... args) {
  fail(ErrorCode::io, "{} {}.", where.text(), fmt::format(what, std::forward<Args>(args)...));
}

// Keys and roles are others' texts, of any length.
std::string quoted(const std::string& text) {
  if (text.size() <= longest_quotation) return "'" + text + "'";
  return "'" + text.substr(0, longest_quotation) + "...'";
}

std::string text_at(const json& object, const char* key, const LineOfFile& where) {
  const auto found = object.find(key);
  if (found == object.end()) fail_at(where, "has no '{}'", key);
  if (!found->is_string()) fail_at(where, "has a '{}' that is no string", key);
  return found->get<std::string>();
}

Message message_of(const json& value, std::size_t number, const LineOfFile& where) {
  if (!value.is_object()) fail_at(where, "has a message {} that is no object with 'role' and 'content'", number);
  for (const auto& [key, ignored] : value.items()) {
    if (key != "role" && key != "content") {
      fail_at(where, "has {} in message {}, of which only 'role' and 'content' are served", quoted(key), number);
    }
  }
  for (const char* const key : {"role", "content"}) {
    const auto found = value.find(key);
    if (found == value.end()) fail_at(where, "has no '{}' in message {}", key, number);
    if (!found->is_string()) fail_at(where, "has a '{}' in message {} that is no string", key, number);
  }
  const auto role = value["role"].get<std::string>();
  const auto found = std::ranges::find(role_names, role);
  if (found == role_names.end()) {
    fail_at(where, "has the role {} in message {}; the roles are system, user and assistant", quoted(role), number);
  }
  return {static_cast<Role>(found - role_names.begin()), value["content"].get<std::string>()};
}

Conversation conversation_of(const json& messages, const LineOfFile& where) {
  if (!messages.is_array()) fail_at(where, "has 'messages' that are no list");
  if (messages.empty()) fail_at(where, "has no message in 'messages'");
  Conversation conversation;
  for (const json& message : messages) {
    conversation.messages.push_back(message_of(message, conversation.messages.size() + 1, where));
  }
  return conversation;
}

}  // namespace

std::string LineOfFile::text() const { return fmt::format("{}, line {}", path, number); }

const char* name(Role role) { return role_names[static_cast<std::size_t>(role)]; }

Example example_of(std::string_view line, const LineOfFile& where) {
  const json object = json::parse(line.begin(), line.end(), nullptr, false);
  if (object.is_discarded()) fail_at(where, "is no JSON");
  if (!object.is_object()) fail_at(where, "is no JSON object");
  const bool has_text = object.contains("text"), has_messages = object.contains("messages");
  const bool has_prompt = object.contains("prompt") || object.contains("completion");
  if (int{has_text} + int{has_messages} + int{has_prompt} > 1) {
    fail_at(where, "has more than one of 'text', 'prompt' and 'messages', so that it is unclear which is meant");
  }
  if (has_text) return TextExample{text_at(object, "text", where)};
  if (has_prompt) return CompletionExample{text_at(object, "prompt", where), text_at(object, "completion", where)};
  if (has_messages) return conversation_of(object["messages"], where);
  fail_at(where, "has neither 'text', nor 'prompt' and 'completion', nor 'messages'{}",
          object.empty() ? "" : ", but " + quoted(object.begin().key()));
}

}  // namespace apps
