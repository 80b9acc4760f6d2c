#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace stretto {

// A file that appears under its name only when it is complete; until then it is PATH.new.
class AtomicFile {
 public:
  // Throws Error(io) if there is a device, a pipe or a socket.
  explicit AtomicFile(std::string path);
  ~AtomicFile();  // without finish(), removes PATH.new
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view text);  // does nothing after a failure
  // Throws Error(io) for the first failure.
  void check() const;
  // Renames PATH.new to PATH; throws as check() does.
  void finish();

 private:
  void note(bool success);

  std::string path_, unfinished_;
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failure
};

}  // namespace stretto
