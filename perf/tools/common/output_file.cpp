#include "common/output_file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/fail.hpp"

namespace perf {

void check_writable(const char* flag, const std::string& path) {
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(path, ignored);
  std::ofstream file(path, std::ios::app);
  require(file.is_open(), "{} {} cannot be written ({}); name a file in a directory that is there.", flag, path,
          std::strerror(errno));
  file.close();
  if (!was_there) std::filesystem::remove(path, ignored);
}

void write_file(const char* flag, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file)
    perf::fail(stretto::ErrorCode::io, "{} {} could not be written completely ({}).", flag, path, std::strerror(errno));
}

}  // namespace perf
