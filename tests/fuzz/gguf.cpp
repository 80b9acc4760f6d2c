// GGUF files. Every tensor that the table promises can be read to its end.
#include "fuzz.hpp"
#include "models/families/gguf/gguf_tensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] {
    const fuzz::File file(data, size);
    const auto source = gguf_weights(file.path());
    for (const StoredTensor& tensor : source->tensors()) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : tensor.shape) elements *= extent;
      double first = 0, last = 0;
      fuzz::parse([&] {
        if (elements > 0) source->read(tensor.name, 0, 1, &first);
        if (elements > 0) source->read(tensor.name, elements - 1, 1, &last);
      });
    }
  });
  return 0;
}
