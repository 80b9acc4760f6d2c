// Megatron-LM's indexed datasets. An input is the tokens, of as many bytes as its first byte says, and the index behind
// them.
#include <algorithm>
#include <limits>
#include <vector>

#include "apps/train/data/token_file.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  if (size == 0) return 0;
  const std::size_t bytes = std::min<std::size_t>(data[0], size - 1);
  fuzz::write("tokens.bin", fuzz::text(data + 1, bytes));
  fuzz::write("tokens.idx", fuzz::text(data + 1 + bytes, size - 1 - bytes));
  fuzz::parse([&] {
    const apps::TokenFile tokens = apps::TokenFile::open(fuzz::directory() / "tokens.bin");
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokens.size()));
    tokens.read(0, tokens.size(), std::numeric_limits<std::int32_t>::max(), all.data());
  });
  return 0;
}
