// Weight files. Every tensor that the header promises can be read to its end.
#include "layers/checkpoint/files/safetensors.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] {
    const fuzz::File file(data, size);
    const SafetensorsReader reader(file.path());
    static_cast<void>(reader.metadata());
    for (const TensorEntry& entry : reader.entries()) {
      fuzz::parse([&] {
        const SafetensorsReader::View view = reader.tensor(entry.name);
        if (view.elements > 0) static_cast<void>(view.at(0) + view.at(view.elements - 1));
      });
    }
  });
  return 0;
}
