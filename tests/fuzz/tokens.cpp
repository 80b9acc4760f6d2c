// Token files of llm.c and nanoGPT, and bytes. Every token that a file promises can be read.
#include "apps/train/data/token_file.hpp"

#include <limits>
#include <vector>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const fuzz::File file(data, size);
  for (const auto format : {apps::DataFormat::llmc, apps::DataFormat::nanogpt, apps::DataFormat::recognised}) {
    fuzz::parse([&] {
      const apps::TokenFile tokens = apps::TokenFile::open(file.path(), format);
      std::vector<std::int32_t> all(static_cast<std::size_t>(tokens.size()));
      tokens.read(0, tokens.size(), std::numeric_limits<std::int32_t>::max(), all.data());
      static_cast<void>(tokens.content());
    });
  }
  return 0;
}
