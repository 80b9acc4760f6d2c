// Names of methods, such as "two_level(ring+ring)*2/16". What is read has a name that is read as the same.
#include "stretto/method.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] {
    const std::string name = to_string(method_from_text(fuzz::text(data, size)));
    if (to_string(method_from_text(name)) != name) std::abort();
  });
  return 0;
}
