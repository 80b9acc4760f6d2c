// tiktoken's rank files: the ranks, and behind the first NUL a text that comes back from its tokens.
#include "apps/tokenizers/files/rank_file.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::vector<std::string> parts = fuzz::parts(fuzz::text(data, size), '\0');
  fuzz::parse([&] {
    apps::TextTokenizer tokenizer(apps::read_ranks("x.tiktoken", parts.front(), size % 2 == 0 ? "llama3" : "gpt2"), true);
    if (tokenizer.decode(tokenizer.encode(parts.back())) != parts.back()) std::abort();
  });
  return 0;
}
