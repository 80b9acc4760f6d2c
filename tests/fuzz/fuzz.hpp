#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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

// What lies between the separators: at least one part.
inline std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::size_t at = 0;
  for (std::size_t end = 0; end != std::string::npos; at = end + 1) {
    end = text.find(separator, at);
    result.push_back(text.substr(at, end == std::string::npos ? end : end - at));
  }
  return result;
}

// A text's lines as the arguments of a program, or as an environment.
class Arguments {
 public:
  explicit Arguments(const std::string& text) : lines_(parts(text, '\n')) {
    for (std::string& line : lines_) values_.push_back(line.data());
    values_.push_back(nullptr);
  }
  int count() const { return static_cast<int>(lines_.size()); }
  char** values() { return values_.data(); }

 private:
  std::vector<std::string> lines_;
  std::vector<char*> values_;
};

// A directory in memory that ends with the process. The path is never destroyed: it is needed after all that are.
inline const std::filesystem::path& directory() {
  static const auto* const made = [] {
    std::string name = "/dev/shm/fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(directory()); });
    return new std::filesystem::path(name);
  }();
  return *made;
}

inline void write(const std::string& name, const std::string& text) {
  std::ofstream(directory() / name, std::ios::binary) << text;
}

// A file of memory.
class File {
 public:
  File(const std::uint8_t* data, std::size_t size) : number_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (number_ < 0 || ::write(number_, data, size) != static_cast<ssize_t>(size)) std::abort();
  }
  ~File() { close(number_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

}  // namespace stretto::fuzz
