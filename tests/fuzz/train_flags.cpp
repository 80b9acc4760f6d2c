// The command line of stretto-train, an argument a line, as far as it is checked before a rank is started and files are
// opened.
#include "apps/train/options/options.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  fuzz::Arguments arguments("stretto-train\n" + fuzz::text(data, size));
  fuzz::parse([&] {
    const auto line = apps::parse_command_line(arguments.count(), arguments.values());
    if (line) line->trainer.on(line->mesh_on(16)).check();
  });
  return 0;
}
