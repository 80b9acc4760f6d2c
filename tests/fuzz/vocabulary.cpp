// Vocabularies of byte pair encoding: encoder.json, vocab.bpe behind its first NUL, and behind the next one a text that
// comes back from its tokens.
#include "apps/tokenizers/read_tokenizer.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::vector<std::string> parts = fuzz::parts(fuzz::text(data, size), '\0');
  if (parts.size() < 3) return 0;
  fuzz::write("encoder.json", parts[0]);
  fuzz::write("vocab.bpe", parts[1]);
  fuzz::parse([&] {
    const auto tokenizer = apps::read_gpt2_tokenizer(fuzz::directory() / "encoder.json", fuzz::directory() / "vocab.bpe");
    if (tokenizer->decode(tokenizer->encode(parts[2])) != parts[2]) std::abort();
  });
  return 0;
}
