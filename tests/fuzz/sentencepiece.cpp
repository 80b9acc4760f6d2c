// sentencepiece's models, of which the last 16 bytes are also a text to encode and decode.
#include <algorithm>

#include "apps/tokenizers/sentencepiece/sentencepiece_file.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string bytes = fuzz::text(data, size);
  fuzz::parse([&] {
    apps::TextTokenizer tokenizer(apps::parts_of(apps::read_sentencepiece("x.model", bytes), "x.model"), true);
    tokenizer.decode(tokenizer.encode(bytes.substr(size - std::min<std::size_t>(size, 16))));
  });
  return 0;
}
