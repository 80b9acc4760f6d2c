#include "stretto/file_rate.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <random>

#include "core/fail.hpp"
#include "core/files/scratch_file.hpp"

namespace stretto {

double measured_file_rate(const std::string& directory, std::int64_t bytes) {
  require(bytes > 0, "A rate cannot be measured with {} bytes; give more.", bytes);
  const std::int64_t half = ScratchFile::aligned((bytes + 1) / 2);
  ScratchFile file(directory, 2 * half);
  const auto memory = [half] {
    void* const block = std::aligned_alloc(ScratchFile::alignment, static_cast<std::size_t>(half));
    require(block != nullptr, "There is no memory of {} bytes to measure files with.", half);
    return std::unique_ptr<void, decltype(&std::free)>(block, &std::free);
  };
  const auto from = memory(), to = memory();
  // Before the clock: whoever writes a page first waits for it, and random bytes are what no disk compresses.
  std::generate_n(static_cast<std::uint64_t*>(from.get()), half / 8, std::mt19937_64());
  std::memcpy(to.get(), from.get(), static_cast<std::size_t>(half));
  file.write(0, from.get(), half);  // a part that was never written reads as zeros, without the disk
  const auto begin = std::chrono::steady_clock::now();
  std::future<void> reading = std::async(std::launch::async, [&] { file.read(0, to.get(), half); });
  file.write(half, from.get(), half);
  reading.get();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return 2 * static_cast<double>(half) / seconds.count();
}

}  // namespace stretto
