#pragma once
#include <cstdio>
#include <string>
#include <string_view>

namespace stretto {

// A file that appears under its name when it is complete, or not at all: until then it is PATH.new.
class WholeFile {
 public:
  explicit WholeFile(std::string path);
  ~WholeFile();  // without finish(): nothing is left
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void write(std::string_view text);  // after a failure, nothing
  // Throws Error(io) for the first thing that went wrong.
  void check() const;
  void finish();

 private:
  void note(bool success);

  std::string path_, unfinished_;
  std::FILE* file_;
  int error_ = 0;  // errno of the first failure
};

}  // namespace stretto
