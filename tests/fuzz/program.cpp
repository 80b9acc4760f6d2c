// Texts of programs, which clients send to executors. What is read has a text that is read as the same.
#include "fuzz.hpp"
#include "program/program_text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] {
    const std::string text = to_text(setup_from_text(fuzz::text(data, size)));
    if (to_text(setup_from_text(text)) != text) std::abort();
  });
  return 0;
}
