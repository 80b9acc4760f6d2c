#pragma once
#include <string>
#include <vector>

#include "apps/train/data/token_file.hpp"

namespace apps {

// The files that names stand for, in the order of their names: files, folders, which stand for the files in them, and
// patterns such as shard_*.bin. Throws Error(io) for a name that stands for no file; Error(invalid_argument) for a file that
// is named twice.
std::vector<std::string> data_files(const std::vector<std::string>& names, DataFormat format);

// The tokens of one or more files of one format as one row, in the order of the files' names: whatever is read may begin in
// one file and end in another.
class TokenRow {
 public:
  // Of data_files(). Throws as that and TokenFile::open(), and Error(io) for files of several formats.
  TokenRow(const std::vector<std::string>& names, DataFormat format);

  // As TokenFile::read().
  void read(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const;
  // Reads the first `tokens`, of each file as many, and throws as read().
  void check(std::int64_t tokens, std::int64_t vocabulary) const;
  std::int64_t size() const { return ends_.back(); }
  bool is_bytes() const { return files_.front().is_bytes(); }
  // TokenFile::description(), or "3 files, a.bin to c.bin: llm.c, 900 tokens".
  std::string description() const;
  // TokenFile::content(), or "900 tokens in 3 files with the digest 0123456789abcdef".
  std::string content() const;

 private:
  std::vector<TokenFile> files_;
  std::vector<std::int64_t> ends_;  // of each file, in tokens of the row
};

}  // namespace apps
