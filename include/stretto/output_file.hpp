#pragma once
#include <cstdio>
#include <string>
#include <string_view>

#include "stretto/export.hpp"

namespace stretto {

// A file that a program writes. If there is a regular file at its path, or nothing, the content appears there at once when
// it is complete, and never if it is not: until then it is in PATH.XXXXXXXX.unfinished. Symbolic links are followed: the
// file that they lead to is replaced, and they stay. A device, a pipe or a socket is never replaced, nor is what /proc names
// (/dev/stdout leads there): the content is written to it. A directory is refused.
class STRETTO_API OutputFile {
 public:
  // `called` names the file in sentences, such as "--json out.json"; its path if empty. That it cannot be
  // opened, check() says. Removes what writers of the same path that were killed more than a minute ago have left.
  explicit OutputFile(std::string path, std::string called = {});
  ~OutputFile();  // without finish(), nothing is left of what was written beside the path
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);           // does nothing after a failure
  void write_at_front(std::string_view bytes);  // over the first bytes; nothing may be written behind it
  void check() const;                           // throws Error(io) for the first failure
  void finish();                                // completes the file; throws as check()

 private:
  void note(bool success);

  std::string path_, called_;
  std::string unfinished_;  // empty if the content is written to the path itself
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failure
};

// Writes a whole file. Throws Error(io).
STRETTO_API void write_output_file(const std::string& path, std::string_view content, const std::string& called = {});

// Throws Error(io) if an OutputFile could not be opened, and leaves everything as it is. Call it before long work.
STRETTO_API void check_output_file(const std::string& path, const std::string& called = {});

// The path to which symbolic links at a path lead, whether there is something or not. Throws Error(io) for a loop.
STRETTO_API std::string followed(const std::string& path);

}  // namespace stretto
