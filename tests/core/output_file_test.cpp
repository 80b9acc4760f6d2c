#include "stretto/output_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "stretto/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;

std::set<std::string> files_in(const TemporaryDirectory& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory.path())) names.insert(entry.path().filename());
  return names;
}

TEST(OutputFile, AppearsWhenItIsComplete) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("file", "old");
  chmod(path.c_str(), 0640);
  {
    OutputFile file(path);
    file.write("new");
    EXPECT_EQ(content_of(path), "old");
  }
  EXPECT_EQ(content_of(path), "old");
  OutputFile file(path);
  file.write("___ and behind it");
  file.write_at_front("new");
  file.finish();
  EXPECT_EQ(content_of(path), "new and behind it");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms(0640));
  EXPECT_EQ(files_in(directory), std::set<std::string>{"file"});
}

TEST(OutputFile, OfAKilledProgramIsGone) {
  const TemporaryDirectory directory;
  const int nameless = open(directory.path().c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
  close(nameless);
  for (const bool there : {false, true}) {
    if (there) directory.write("file", "old");
    const pid_t writer = fork();
    if (writer == 0) {
      OutputFile file(directory / "file");
      file.write(std::string(1 << 20, 'x'));
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(files_in(directory), there ? std::set<std::string>{"file"} : std::set<std::string>{});
  }
  EXPECT_EQ(content_of(directory / "file"), "old");
}

TEST(OutputFile, StaysBehindItsSymbolicLink) {
  const TemporaryDirectory directory;
  fs::create_directory(directory / "inner");
  fs::create_symlink("inner/target", directory / "link");  // to nothing yet
  fs::create_symlink(directory / "link", directory / "link of link");
  for (const char* const content : {"first", "second"}) {
    check_output_file(directory / "link of link");
    write_output_file(directory / "link of link", content);
    EXPECT_EQ(content_of(directory / "inner/target"), content);
    EXPECT_TRUE(fs::is_symlink(directory / "link") && fs::is_symlink(directory / "link of link"));
  }
  fs::create_symlink("loop", directory / "loop");
  EXPECT_THROW(write_output_file(directory / "loop", "text"), Error);
  EXPECT_THROW(check_output_file(directory / "loop"), Error);
  EXPECT_THROW(followed(directory / "loop"), Error);
  EXPECT_EQ(followed(directory / "link"), directory / "inner/target");
}

TEST(OutputFile, NeverTakesThePlaceOfAnythingElse) {
  const TemporaryDirectory directory;
  const std::string fifo = directory / "fifo", full = directory / "full", null = directory / "null";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  fs::create_symlink("/dev/full", full);
  fs::create_symlink("/dev/null", null);
  for (const std::string& path : {fifo, full, null}) check_output_file(path);
  std::string read;
  std::thread reader([&] { read = content_of(fifo); });
  write_output_file(fifo, "through the pipe");
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  write_output_file(null, "nowhere");
  try {
    write_output_file(full, "too much", "--out full");
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_STREQ(error.what(), "--out full cannot be written: No space left on device.");
  }
  EXPECT_TRUE(fs::is_fifo(fifo) && fs::is_symlink(full) && fs::is_symlink(null));
  EXPECT_TRUE(fs::is_character_file("/dev/full") && fs::is_character_file("/dev/null"));
  for (const std::string& path : {directory.path(), directory / "nowhere/file", std::string("/proc/nothing")}) {
    EXPECT_THROW(check_output_file(path), Error) << path;
    EXPECT_THROW(write_output_file(path, "text"), Error) << path;
  }
  // Of this process: what its standard output leads to stays there, too.
  EXPECT_NO_THROW(write_output_file("/dev/stdout", "\n"));
}

}  // namespace
}  // namespace stretto
