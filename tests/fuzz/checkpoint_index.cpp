// index.json of checkpoints.
#include "layers/checkpoint/checkpoint_index.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::write("index.json", fuzz::text(data, size));
  fuzz::parse([&] { read_index(fuzz::directory()); });
  return 0;
}
