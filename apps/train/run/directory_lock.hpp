#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace apps {

// Lets one job at a time write a directory that a flag names, by a lock on the file .FLAG.lock in it. The system gives a
// lock up with the process; a file system without locks lets everybody in.
class DirectoryLock {
 public:
  // Makes the directory unless it exists. Throws Error(io) if it cannot be written, or after some seconds in which another
  // process has held the lock: one that has been killed may take as long to end.
  DirectoryLock(const std::string& flag, const std::string& directory);
  // Removes the file, and directories that were made and in which there is nothing.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  bool take();

  std::vector<std::filesystem::path> made_;
  std::string path_;
  int file_ = -1;
};

}  // namespace apps
