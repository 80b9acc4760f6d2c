// Lines of examples, and behind the first NUL a chat template, by which the line's conversation is written if it is served.
#include "apps/train/examples/example_encoder.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace apps;
  const std::vector<std::string> parts = stretto::fuzz::parts(stretto::fuzz::text(data, size), '\0');
  if (parts.empty()) return 0;
  const LineOfFile where{"line.jsonl", 1};
  stretto::fuzz::parse([&] {
    const Example example = example_of(parts[0], where);
    ByteTokenizer bytes;
    for (const char* const form : {"chatml", "llama2", "llama3"}) {
      const auto* const conversation = std::get_if<Conversation>(&example);
      if (conversation == nullptr) break;
      stretto::fuzz::parse([&] { written(chat_template_named(form), *conversation, where); });
    }
    if (std::holds_alternative<TextExample>(example)) ExampleEncoder(bytes, "").encode(example, where);
  });
  if (parts.size() > 1) stretto::fuzz::parse([&] { recognised_chat_template(parts[1]); });
  return 0;
}
