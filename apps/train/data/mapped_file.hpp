#pragma once
#include <string>
#include <string_view>

#include "apps/train/data/data_file.hpp"

namespace apps {

// A whole text in memory, read only, which may be larger than memory. It must not become shorter meanwhile.
class MappedFile {
 public:
  // Throws as DataFile().
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string_view text_;
};

}  // namespace apps
