#include "apps/train/data/token_row.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;
namespace fs = std::filesystem;

namespace {

// A process may have few descriptors (ulimit -n). Files of longer rows are opened for each read.
constexpr std::size_t most_open = 256;

// Of Megatron-LM's two files, the tokens.
bool is_data(const fs::path& path, DataFormat format) {
  const bool is_index = path.extension() == ".idx" && fs::exists(fs::path(path).replace_extension(".bin"));
  return !is_index || format == DataFormat::bytes;
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error, ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const bool is_hidden = entry.path().filename().string().starts_with('.');
    if (entry.is_regular_file(ignored) && !is_hidden) files.push_back(entry.path());
  }
  if (error) fail(ErrorCode::io, "Cannot read {}: {}.", folder, error.message());
  return files;
}

std::vector<std::string> files_like(const std::string& pattern) {
  glob_t found{};
  glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return files;
}

std::vector<std::string> files_of(const std::string& name, DataFormat format) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(name, ignored);
  const bool is_pattern = !fs::exists(name, ignored) && name.find_first_of("*?[") != std::string::npos;
  if (!is_folder && !is_pattern) return {name};
  std::vector<std::string> files = is_folder ? files_in(name) : files_like(name);
  std::erase_if(files, [&](const std::string& file) { return !is_data(file, format); });
  if (files.empty() && is_folder) fail(ErrorCode::io, "{} is a folder without files.", name);
  if (files.empty()) fail(ErrorCode::io, "No file has a name like {}.", name);
  return files;
}

}  // namespace

std::vector<std::string> data_files(const std::vector<std::string>& names, DataFormat format) {
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    for (std::string& path : files_of(name, format)) paths.push_back(std::move(path));
  }
  std::ranges::sort(paths);
  const auto twice = std::ranges::adjacent_find(paths);
  require(twice == paths.end(), "{} is named twice; a weight repeats data, such as 2 {} 1 OTHER.",
          twice == paths.end() ? "" : *twice, twice == paths.end() ? "" : *twice);
  return paths;
}

TokenRow::TokenRow(const std::vector<std::string>& names, DataFormat format) {
  const std::vector<std::string> paths = data_files(names, format);
  for (const std::string& path : paths) {
    TokenFile& file = files_.emplace_back(TokenFile::open(path, format));
    if (paths.size() > most_open) file.close();
    ends_.push_back((ends_.empty() ? 0 : ends_.back()) + file.size());
    if (file.format() != files_.front().format()) {
      fail(ErrorCode::io, "'{}' and '{}' are of two formats, and a row of tokens has one; leave one of them out.",
           files_.front().description(), file.description());
    }
  }
}

void TokenRow::read(std::int64_t first, std::int64_t count, std::int64_t vocabulary, std::int32_t* out) const {
  for (std::size_t i = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin()); count > 0; ++i) {
    const std::int64_t here = std::min(count, ends_[i] - first);
    files_[i].read(first - (ends_[i] - files_[i].size()), here, vocabulary, out);
    first += here;
    count -= here;
    out += here;
  }
}

void TokenRow::check(std::int64_t tokens, std::int64_t vocabulary) const {
  std::vector<std::int32_t> piece(1 << 16);
  const auto most = static_cast<std::int64_t>(piece.size());
  const std::int64_t of_each = std::max(tokens / static_cast<std::int64_t>(files_.size()), most);
  for (const TokenFile& file : files_) {
    const std::int64_t end = std::min(file.size(), of_each);
    for (std::int64_t at = 0; at < end; at += most) file.read(at, std::min(most, end - at), vocabulary, piece.data());
  }
}

std::string TokenRow::description() const {
  if (files_.size() == 1) return files_.front().description();
  return fmt::format("{} files, {} to {}: {}, {} tokens", files_.size(), files_.front().path(), files_.back().path(),
                     name(files_.front().format()), size());
}

std::string TokenRow::content() const {
  if (files_.size() == 1) return files_.front().content();
  std::uint64_t digest = 0;
  for (const TokenFile& file : files_) {
    digest = digest * 0x9e3779b97f4a7c15U + file.digest(files_.size());  // another order is another sum
  }
  return fmt::format("{} tokens in {} files with the digest {:016x}", size(), files_.size(), digest);
}

}  // namespace apps
