#pragma once
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "stretto/export.hpp"

namespace stretto {

// A file that a program writes. If the path names a regular file, or nothing, the content appears there at once when it is
// complete; until then it has no name, so that a killed program leaves nothing, or, on file systems that know no such files
// (NFS), the name PATH.XXXXXXXX.unfinished. Symbolic links are followed: the file that they lead to is
// replaced, and the links stay. Devices, pipes, sockets and paths in /proc (to which /dev/stdout leads) are never replaced:
// the content is written to them. A directory is refused.
class STRETTO_API OutputFile {
 public:
  // `called` names the file in error messages, such as "--json out.json"; empty: the path. If the file cannot be opened,
  // check() throws, not the constructor. Removes unfinished files of this path that are older than a minute.
  explicit OutputFile(std::string path, std::string called = {});
  ~OutputFile();  // without finish(), removes the unfinished file
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);           // does nothing after a failure
  void write_at_front(std::string_view bytes);  // overwrites the first bytes; must be the last write
  void check() const;                           // throws Error(io) for the first failure
  void finish();                                // completes the file; throws as check()

 private:
  void note(bool success);

  std::string path_, called_;
  std::string unfinished_;  // empty if the content is written to the path itself
  bool nameless_ = false;   // the file gets its name when it is complete
  std::FILE* file_ = nullptr;
  int error_ = 0;  // errno of the first failure
};

// Writes a whole file. Throws Error(io).
STRETTO_API void write_output_file(const std::string& path, std::string_view content, const std::string& called = {});

// Throws Error(io) if an OutputFile could not be opened, and leaves everything as it is. Call it before long work.
STRETTO_API void check_output_file(const std::string& path, const std::string& called = {});

// Returns the path that symbolic links at `path` lead to, whether a file is there or not. Throws Error(io) for a loop.
STRETTO_API std::string followed(const std::string& path);

// The directories that must be made for one to be there, the innermost first.
STRETTO_API std::vector<std::filesystem::path> missing_directories(const std::filesystem::path& directory);

}  // namespace stretto
