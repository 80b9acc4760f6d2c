#include "models/families/written_directory.hpp"

#include <system_error>

#include "core/fail.hpp"
#include "stretto/output_file.hpp"

namespace stretto {

namespace fs = std::filesystem;

namespace {

fs::path finished_path(const std::string& directory) {
  return followed((fs::path(directory) / "").lexically_normal().parent_path());  // without a slash behind it
}

fs::path unfinished_path(const std::string& directory) { return finished_path(directory).string() + ".unfinished"; }

[[noreturn]] void fail_to_write(const char* what, const std::string& directory, const std::error_code& error) {
  fail(ErrorCode::io, "Cannot export {} to {}: {}.", what, directory, error.message());
}

}  // namespace

void write_directory(const Communicator& world, const std::string& directory, const char* what,
                     const std::function<void(const fs::path&)>& write) {
  const fs::path finished = finished_path(directory);
  const fs::path unfinished = unfinished_path(directory);
  const bool writes = world.rank() == 0;
  try {
    if (writes) {
      fs::remove_all(unfinished);
      fs::create_directories(unfinished);
    }
    write(unfinished);
    if (writes) fs::rename(unfinished, finished);
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (writes) fs::remove_all(unfinished, ignored);
    const auto* filesystem = dynamic_cast<const fs::filesystem_error*>(&error);
    if (filesystem == nullptr) throw;
    fail_to_write(what, directory, filesystem->code());
  }
  world.barrier(Stream::inline_()).wait();  // no rank goes on, or ends, before it is complete
}

void check_new_directory(const std::string& directory, const char* what) {
  std::error_code error;
  const fs::path finished = finished_path(directory);
  const bool is_there = fs::exists(finished, error);
  if (is_there && !(fs::is_directory(finished, error) && fs::is_empty(finished, error)) && !error) {
    fail(ErrorCode::io, "There is something in {} already; export to a directory that does not exist.", directory);
  }
  const std::vector<fs::path> made = missing_directories(unfinished_path(directory));
  if (!error) fs::create_directories(unfinished_path(directory), error);
  std::error_code ignored;
  for (const fs::path& each : made) fs::remove(each, ignored);
  if (error) fail_to_write(what, directory, error);
}

}  // namespace stretto
