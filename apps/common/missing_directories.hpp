#pragma once
#include <filesystem>
#include <vector>

namespace apps {

// The directories that must be made for one to be there, the innermost first.
inline std::vector<std::filesystem::path> missing_directories(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  std::filesystem::path at = std::filesystem::absolute(directory);
  for (; !std::filesystem::exists(at, ignored) && at.has_relative_path(); at = at.parent_path()) missing.push_back(at);
  return missing;
}

}  // namespace apps
