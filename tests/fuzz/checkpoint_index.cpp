// index.json of checkpoints.
#include "layers/checkpoint/checkpoint_index.hpp"

#include <filesystem>
#include <fstream>

#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stretto;
  static const std::filesystem::path directory = [] {
    std::string made = "/dev/shm/fuzz-XXXXXX";
    if (mkdtemp(made.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(directory); });
    return std::filesystem::path(made);
  }();
  std::ofstream(directory / "index.json", std::ios::binary) << fuzz::text(data, size);
  fuzz::parse([&] { read_index(directory); });
  return 0;
}
