// Schedule files of pipelines. What is read is checked, too.
#include "stretto/overlap/schedule.hpp"

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::parse([&] { schedule_from_text(fuzz::text(data, size)); });
  return 0;
}
