// config.json of models of Hugging Face's transformers.
#include "fuzz.hpp"
#include "stretto/models/families.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string text = fuzz::text(data, size);
  fuzz::parse([&] { decoder_shape_from_config(text, "config.json"); });
  return 0;
}
