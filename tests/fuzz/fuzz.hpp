#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "stretto/error.hpp"

// What all targets share. A target calls parsers on libFuzzer's bytes; an Error in one sentence is the only exception that
// may leave a parser, and all others end the target, which libFuzzer reports as a crash.
namespace stretto::fuzz {

template <class Parse>
void parse(Parse parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (std::string(error.what()).empty()) std::abort();
  }
}

inline std::string text(const std::uint8_t* data, std::size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A file of memory.
class File {
 public:
  File(const std::uint8_t* data, std::size_t size) : number_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (number_ < 0 || write(number_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~File() { close(number_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

}  // namespace stretto::fuzz
