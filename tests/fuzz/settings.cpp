// Settings of the environment, and the variables of launchers: NAME=VALUE, one a line.
#include "core/setting_values.hpp"
#include "fuzz.hpp"
#include "transport/bootstrap/launcher.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::Arguments variables(fuzz::text(data, size));
  char** const own = environ;
  environ = variables.values();
  fuzz::parse([&] { check_settings(); });
  for (const Setting& each : settings()) {
    const std::string kind = each.default_value;
    const bool is_number = kind.find_first_not_of("0123456789") == std::string::npos && !kind.empty();
    if (is_number) fuzz::parse([&] { number_setting(each.name); });
    if (is_number) fuzz::parse([&] { numbers_setting(each.name); });
  }
  fuzz::parse([&] { launched_as(); });
  environ = own;
  return 0;
}
