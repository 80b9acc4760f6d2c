// Tuning files (STRETTO_TUNING) and rules (STRETTO_ALGO).
#include "stretto/planning/tuning.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string text = fuzz::text(data, size);
  fuzz::parse([&] { Tuning::with_settings(text, "the input"); });
  fuzz::parse([&] { rules_from_text(text, "a file"); });
  return 0;
}
