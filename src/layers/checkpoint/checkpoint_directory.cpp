#include "layers/checkpoint/checkpoint_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <vector>

#include "core/fail.hpp"
#include "stretto/layers/checkpoint.hpp"

namespace stretto {

namespace fs = std::filesystem;

void sync_to_disk(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = file >= 0 && (fsync(file) == 0 || errno == EINVAL);  // some file systems have no fsync of directories
  const int error = errno;
  if (file >= 0) close(file);
  if (!synced) fail(ErrorCode::io, "Cannot bring {} to the disk: {}.", path.string(), errno_text(error));
}

void write_to_disk(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) fail(ErrorCode::io, "Cannot write {}: {}.", path.string(), errno_text(errno));
  sync_to_disk(path);
}

void exchange_directory(const fs::path& path, const fs::path& with) {
  if (renameat2(AT_FDCWD, with.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno == EINVAL || errno == ENOSYS) {  // a file system that cannot exchange: for a moment there is no checkpoint
    fs::remove_all(path);
  } else if (errno != ENOENT) {
    fail(ErrorCode::io, "Cannot put a checkpoint in the place of {}: {}.", path.string(), errno_text(errno));
  }
  fs::rename(with, path);
}

// ---- checkpoints

std::string checkpoint_name(std::int64_t step) { return fmt::format("step_{:08}", step); }
bool names_a_step(const std::string& name) {
  return name.starts_with("step_") && name.size() > 5 && name.find_first_not_of("0123456789", 5) == std::string::npos;
}
fs::path unfinished_name(const fs::path& name) { return fmt::format(".{}.unfinished", name.string()); }

namespace {

// Those of a directory whose names begin and end so.
std::vector<fs::path> entries(const fs::path& directory, const std::string& begin, const std::string& end) {
  std::vector<fs::path> result;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(begin) && name.ends_with(end) && entry.is_directory()) result.push_back(entry.path());
  }
  return result;
}

bool is_complete(const fs::path& checkpoint) { return fs::exists(checkpoint / "index.json"); }

std::vector<fs::path> complete_checkpoints(const fs::path& directory) {  // the newest first
  if (!fs::is_directory(directory)) return {};
  std::vector<fs::path> found = entries(directory, "step_", "");
  std::erase_if(found, [](const fs::path& path) { return !is_complete(path); });
  std::sort(found.begin(), found.end(), std::greater<>());
  return found;
}

// Calls f, and says errors of the file system in one sentence.
template <class F>
auto in_words(const std::string& directory, F f) {
  try {
    return f();
  } catch (const fs::filesystem_error& error) {
    fail(ErrorCode::io, "Cannot look for checkpoints in {}: {}.", directory, error.code().message());
  }
}

std::string newest_checkpoint(const std::string& directory, std::string* left_out) {
  if (left_out != nullptr) left_out->clear();
  if (is_complete(directory)) return directory;
  const fs::path latest = fs::path(directory) / "latest";
  std::ifstream file;
  if (fs::is_regular_file(latest)) file.open(latest);
  std::vector<fs::path> complete = complete_checkpoints(directory);
  std::string name;
  if (!file.is_open() || !std::getline(file, name) || name.empty()) {
    if (complete.empty()) fail(ErrorCode::io, "There is no checkpoint in {}.", directory);
    return complete.front();  // the job was killed before it could name its first one
  }
  if (!names_a_step(name)) {
    fail(ErrorCode::io,
         "{} says '{}', which is no name of a checkpoint beside it, such as {}; remove the file, and the newest "
         "one is taken.",
         latest.string(), name, complete.empty() ? checkpoint_name(200) : complete.front().filename().string());
  }
  const fs::path newest = fs::path(directory) / name;
  if (is_complete(newest)) return newest;
  std::erase_if(complete, [&](const fs::path& path) { return path.filename().string() >= name; });
  if (complete.empty()) {
    fail(ErrorCode::io, "There is no complete checkpoint in {}: {} has no index.json, nor is an older one there.", directory,
         name);
  }
  if (left_out != nullptr) *left_out = newest;
  return complete.front();
}

}  // namespace

void begin_checkpoint(const fs::path& directory, const std::string& name) {
  fs::create_directories(directory);
  for (const char* const left_by_a_killed_run : {".unfinished", ".removed"}) {
    for (const fs::path& left : entries(directory, ".step_", left_by_a_killed_run)) fs::remove_all(left);
  }
  fs::create_directory(directory / unfinished_name(name));
}

void publish_checkpoint(const fs::path& directory, const std::string& name) {
  const fs::path unfinished = directory / unfinished_name(name);
  const fs::path latest = directory / "latest.new";
  write_to_disk(latest, name + '\n');  // first, since the disk may be full
  sync_to_disk(unfinished);
  exchange_directory(directory / name, unfinished);
  sync_to_disk(directory);
  fs::rename(latest, directory / "latest");
  sync_to_disk(directory);
  std::error_code ignored;
  fs::remove_all(unfinished, ignored);  // the earlier checkpoint of the same step
}

void discard_checkpoint(const fs::path& directory, const std::string& name) {
  std::error_code ignored;
  fs::remove_all(directory / unfinished_name(name), ignored);
  fs::remove(directory / "latest.new", ignored);
}

void remove_old_checkpoints(const fs::path& directory, int keep) {
  const std::string newest = fs::path(find_checkpoint(directory)).filename();
  std::vector<fs::path> older = entries(directory, "step_", "");
  std::erase_if(older, [&](const fs::path& path) { return path.filename().string() >= newest; });
  std::sort(older.begin(), older.end(), std::greater<>());
  std::vector<fs::path> removed;
  int kept = 1;
  for (const fs::path& each : older) {
    if (is_complete(each) && kept++ < keep) continue;
    removed.push_back(each.parent_path() / fmt::format(".{}.removed", each.filename().string()));
    fs::remove_all(removed.back());
    fs::rename(each, removed.back());
  }
  for (const fs::path& each : removed) fs::remove_all(each);
}

bool has_checkpoint(const std::string& directory) {
  return in_words(directory, [&] {
    return is_complete(directory) || fs::exists(fs::path(directory) / "latest") || !complete_checkpoints(directory).empty();
  });
}

std::string find_checkpoint(const std::string& directory, std::string* left_out) {
  return in_words(directory, [&] { return newest_checkpoint(directory, left_out); });
}

}  // namespace stretto
