#pragma once
#include <cstdint>
#include <string>

namespace stretto {

// A scratch file of this rank: what lies in it, where, its size, and what steps have read and written so far, in bytes.
struct OffloadUse {
  std::string what = {}, directory = {};
  std::int64_t bytes = 0, read = 0, written = 0;
  bool bypasses_cache = true;  // false: the file system has no O_DIRECT, and the page cache keeps copies
  bool io_uring = true;        // false: the build or the kernel has none, and each read or write is a call
};

}  // namespace stretto
