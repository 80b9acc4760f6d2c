// Files of Hugging Face's tokenizers: tokenizer.json, and behind its first NUL a text to encode and decode.
#include "apps/tokenizers/json/tokenizer_json.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::vector<std::string> parts = fuzz::parts(fuzz::text(data, size), '\0');
  fuzz::parse([&] {
    apps::TextTokenizer tokenizer(apps::read_tokenizer_json("/nowhere/tokenizer.json", parts.front()), true);
    tokenizer.decode(tokenizer.encode(parts.back()));
  });
  return 0;
}
