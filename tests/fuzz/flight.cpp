// What ranks' flight recorders have written: one file behind the other, with a NUL between them.
#include "apps/info/flight/report.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  const std::vector<std::string> files = fuzz::parts(fuzz::text(data, size), '\0');
  if (files.size() > 8) return 0;
  for (std::size_t i = 0; i < 8; ++i) {
    const std::string name = "flight_" + std::to_string(i) + ".json";
    if (i < files.size()) fuzz::write(name, files[i]);
    if (i >= files.size()) std::filesystem::remove(fuzz::directory() / name);
  }
  fuzz::parse([&] {
    std::vector<std::string> damaged;
    apps::flight::report_of(fuzz::directory(), damaged);
    if (!damaged.empty()) throw stretto::Error(stretto::ErrorCode::io, damaged.front());
  });
  return 0;
}
