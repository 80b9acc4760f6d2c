#pragma once
#include <cstdint>
#include <memory>
#include <string>

struct XXH3_state_s;  // of xxhash.h

namespace stretto {

// XXH3 of a file's bytes, in pieces. It finds what a memory, a disk or a link has changed, not what somebody forges.
class FileDigest {
 public:
  FileDigest();
  void add(const void* bytes, std::size_t count);
  std::uint64_t value() const;  // of all so far

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// Reads a whole file. Throws Error(io).
std::uint64_t digest_of_file(const std::string& path);

}  // namespace stretto
