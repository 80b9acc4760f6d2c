// config.json of models of Hugging Face's transformers.
#include "apps/train/hf/hf_config.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::write("config.json", fuzz::text(data, size));
  fuzz::parse([&] { apps::read_hf_config(fuzz::directory()); });
  return 0;
}
