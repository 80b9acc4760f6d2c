#include "apps/train/examples/chat_template.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "apps/common/fail.hpp"

namespace apps {

namespace {

constexpr std::array<const char*, 3> kind_names = {"chatml", "llama2", "llama3"};
constexpr std::string_view chatml_begin = "<|im_start|>", chatml_end = "<|im_end|>";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// The program without what may be written in several ways: spaces between words, kinds of quotation marks, x['y'] for x.y,
// and escaped line feeds.
std::string normalised(std::string_view jinja) {
  std::string result;
  char quotation = 0;
  for (std::size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    if (quotation == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r')) continue;
    if (quotation != 0 && c == '\\' && i + 1 < jinja.size()) {
      const char next = jinja[++i];
      result += next == 'n' ? '\n' : next;
      continue;
    }
    if (c == quotation || (quotation == 0 && (c == '\'' || c == '"'))) {
      quotation = quotation == 0 ? c : 0;
      result += '\'';
    } else {
      result += c;
    }
  }
  replace_all(result, "['role']", ".role");
  replace_all(result, "['content']", ".content");
  return result;
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// '<|im_start|>system ... <|im_end|>' as one literal is what the system says by default.
std::string default_system_in(const std::string& program) {
  const std::string begin = std::string(chatml_begin) + "system\n";
  for (std::size_t at = 0; (at = program.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    const std::size_t end = program.find(chatml_end, at);
    if (end != std::string::npos && end < program.find('\'', at)) return program.substr(at, end - at);
  }
  return {};
}

[[noreturn]] void refuse(const std::string& what) {
  fail(
      stretto::ErrorCode::invalid_argument,
      "The tokenizer's chat template {}, which is none of the forms that are served (ChatML, Llama 2's and Llama 3's); give "
      "--chat-template chatml, llama2 or llama3 to write conversations in that form anyway.",
      what);
}

// Python's str.strip(), by which templates cut off white space.
std::string_view stripped(std::string_view text) {
  static constexpr std::array<std::string_view, 30> spaces = {" ",
                                                              "\t",
                                                              "\n",
                                                              "\v",
                                                              "\f",
                                                              "\r",
                                                              "\x1c",
                                                              "\x1d",
                                                              "\x1e",
                                                              "\x1f",
                                                              "\xc2\x85",
                                                              "\xc2\xa0",
                                                              "\xe1\x9a\x80",
                                                              "\xe2\x80\x80",
                                                              "\xe2\x80\x81",
                                                              "\xe2\x80\x82",
                                                              "\xe2\x80\x83",
                                                              "\xe2\x80\x84",
                                                              "\xe2\x80\x85",
                                                              "\xe2\x80\x86",
                                                              "\xe2\x80\x87",
                                                              "\xe2\x80\x88",
                                                              "\xe2\x80\x89",
                                                              "\xe2\x80\x8a",
                                                              "\xe2\x80\xa8",
                                                              "\xe2\x80\xa9",
                                                              "\xe2\x80\xaf",
                                                              "\xe2\x81\x9f",
                                                              "\xe3\x80\x80"};
  const auto space_of = [](auto is_at) {
    const auto found = std::ranges::find_if(spaces, [&](std::string_view space) { return !space.empty() && is_at(space); });
    return found == spaces.end() ? std::size_t{0} : found->size();
  };
  while (const std::size_t space = space_of([&](std::string_view each) { return text.starts_with(each); })) {
    text.remove_prefix(space);
  }
  while (const std::size_t space = space_of([&](std::string_view each) { return text.ends_with(each); })) {
    text.remove_suffix(space);
  }
  return text;
}

void write_chatml(const std::string& role, const std::string& content, bool counts, std::vector<ChatPiece>& pieces) {
  pieces.push_back({.text = std::string(chatml_begin), .is_token = true});
  pieces.push_back({.text = role + "\n"});
  pieces.push_back({.text = content, .counts = counts});
  pieces.push_back({.text = std::string(chatml_end), .is_token = true, .counts = counts});
  pieces.push_back({.text = "\n"});
}

std::vector<ChatPiece> chatml(const ChatTemplate& form, const std::vector<Message>& messages) {
  std::vector<ChatPiece> pieces;
  if (!form.default_system.empty() && messages.front().role != Role::system) {
    write_chatml(name(Role::system), form.default_system, false, pieces);
  }
  for (const Message& message : messages) {
    write_chatml(name(message.role), message.content, message.role == Role::assistant, pieces);
  }
  return pieces;
}

std::vector<ChatPiece> llama3(const std::vector<Message>& messages) {
  std::vector<ChatPiece> pieces = {{.text = llama3_beginning_token, .is_token = true}};
  for (const Message& message : messages) {
    const bool counts = message.role == Role::assistant;
    pieces.push_back({.text = "<|start_header_id|>", .is_token = true});
    pieces.push_back({.text = name(message.role)});
    pieces.push_back({.text = "<|end_header_id|>", .is_token = true});
    pieces.push_back({.text = "\n\n"});
    pieces.push_back({.text = std::string(stripped(message.content)), .counts = counts});
    pieces.push_back({.text = "<|eot_id|>", .is_token = true, .counts = counts});
  }
  return pieces;
}

std::vector<ChatPiece> llama2(const std::vector<Message>& messages, const LineOfFile& where) {
  std::vector<ChatPiece> pieces;
  const bool has_system = messages.front().role == Role::system;
  const std::size_t first = has_system ? 1 : 0;
  for (std::size_t i = first; i < messages.size(); ++i) {
    const Role turn = (i - first) % 2 == 0 ? Role::user : Role::assistant;
    if (messages[i].role != turn) {
      fail(stretto::ErrorCode::io,
           "{} has message {} of the {}, where Llama 2's template wants the {}: these two take turns.", where.text(), i + 1,
           name(messages[i].role), name(turn));
    }
    std::string content = messages[i].content;
    if (i == first && has_system) content = "<<SYS>>\n" + messages.front().content + "\n<</SYS>>\n\n" + content;
    if (turn == Role::user) {
      pieces.push_back({.text = beginning_token, .is_token = true});
      pieces.push_back({.text = fmt::format("[INST] {} [/INST]", stripped(content))});
    } else {
      pieces.push_back({.text = fmt::format(" {} ", stripped(content)), .counts = true});
      pieces.push_back({.text = end_token, .is_token = true, .counts = true});
    }
  }
  return pieces;
}

}  // namespace

std::string ChatTemplate::description() const {
  std::string text = kind_names[static_cast<std::size_t>(kind)];
  if (!default_system.empty()) text += fmt::format(" with the system message '{}'", default_system);
  return text;
}

ChatTemplate chat_template_named(const std::string& name) {
  const auto found = std::ranges::find(kind_names, name);
  require(found != kind_names.end(), "--chat-template '{}' is unknown; the forms are {}.", name,
          fmt::join(kind_names, ", "));
  return {static_cast<ChatTemplate::Kind>(found - kind_names.begin()), ""};
}

// A form is recognised by what its program joins for a message; what a program does beside that is looked for by its words.
ChatTemplate recognised_chat_template(const std::string& jinja) {
  const std::string program = normalised(jinja);
  for (const auto& [word, does] : {std::pair{"<think>", "writes <think> into answers"},
                                   {"reasoning_content", "writes what models think into answers"},
                                   {"CuttingKnowledgeDate", "writes dates into the system message"},
                                   {"Cutting Knowledge Date", "writes dates into the system message"},
                                   {"strftime_now", "writes the date"}}) {
    if (has(program, word)) refuse(does);
  }
  if (has(program, chatml_begin)) {
    if (!has(program, "'<|im_start|>'+message.role+'\n'+message.content+'<|im_end|>'")) {
      refuse("has <|im_start|> without '<|im_start|>' + role + '\\n' + content + '<|im_end|>'");
    }
    if (has(program, "bos_token")) refuse("puts a token before ChatML");
    return {ChatTemplate::Kind::chatml, default_system_in(program)};
  }
  if (has(program, "<|start_header_id|>")) {
    if (!has(program, "'<|start_header_id|>'+message.role+'<|end_header_id|>\n\n'+message.content|trim+'<|eot_id|>'")) {
      refuse("has <|start_header_id|> without Llama 3's header, trimmed content and <|eot_id|>");
    }
    return {ChatTemplate::Kind::llama3, ""};
  }
  if (has(program, "[INST]")) {
    const bool has_system = has(program, "'<<SYS>>\n'+system_message+'\n<</SYS>>\n\n'+message.content");
    const bool has_turns = has(program, "bos_token+'[INST] '+content.strip()+' [/INST]'");
    if (!has_system || !has_turns || !has(program, "' '+content.strip()+' '+eos_token")) {
      refuse("has [INST] in another way than Llama 2's");
    }
    return {ChatTemplate::Kind::llama2, ""};
  }
  refuse("has neither <|im_start|> nor <|start_header_id|> nor [INST]");
}

std::vector<ChatPiece> written(const ChatTemplate& form, const Conversation& conversation, const LineOfFile& where) {
  switch (form.kind) {
    case ChatTemplate::Kind::chatml: return chatml(form, conversation.messages);
    case ChatTemplate::Kind::llama2: return llama2(conversation.messages, where);
    case ChatTemplate::Kind::llama3: break;
  }
  return llama3(conversation.messages);
}

}  // namespace apps
