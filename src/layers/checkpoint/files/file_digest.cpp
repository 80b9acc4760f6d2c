#include "layers/checkpoint/files/file_digest.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <vector>

#include "core/fail.hpp"
#include "layers/checkpoint/files/safetensors.hpp"

namespace stretto {

FileDigest::FileDigest() : state_(XXH3_createState()) { XXH3_64bits_reset(state_.get()); }
void FileDigest::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }
void FileDigest::add(const void* bytes, std::size_t count) { XXH3_64bits_update(state_.get(), bytes, count); }
std::uint64_t FileDigest::value() const { return XXH3_64bits_digest(state_.get()); }

std::uint64_t digest_of_file(const std::string& path) {
  const SafetensorsFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::byte> block(std::size_t{1} << 20);  // stays in a core's cache
  FileDigest digest;
  while (true) {
    const ssize_t got = read(file.number, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "Cannot read {}: {}.", path, errno_text(errno));
    if (got == 0) return digest.value();
    digest.add(block.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace stretto
