// Speeds of links: STRETTO_LINKS, STRETTO_NETWORK, and files of link models. What is read can be written and read again.
#include "fuzz.hpp"
#include "stretto/planning/simulate.hpp"
#include "transport/link_setting.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::string text = fuzz::text(data, size);
  fuzz::parse([&] { link_setting_from_text(text); });
  fuzz::parse([&] { network_speed_from_text(text); });
  fuzz::parse([&] { link_model_from_text(text); });
  return 0;
}
