#include "core/files/text_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>

#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string refusal_of_text(const std::string& path) {
  return sentence_of(ErrorCode::invalid_argument, [&] { text_of_file(path, "The file '" + path + "'"); });
}

TEST(TextFile, IsRead) {
  const TemporaryDirectory directory;
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{65536}, std::size_t{200000}}) {
    const std::string text(size, 'x');
    directory.write("file", text);
    EXPECT_EQ(text_of_file(directory / "file", "It"), text);
  }
}

TEST(TextFile, WhatMightNeverEndIsRefused) {
  const TemporaryDirectory directory;
  const std::string fifo = directory / "fifo", large = directory / "large";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, std::string("/dev/zero"), directory.path()}) {
    EXPECT_THAT(refusal_of_text(path), AllOf(HasSubstr(path), HasSubstr("no regular file")));
  }
  directory.write("large", "");
  std::filesystem::resize_file(large, std::uintmax_t{1} << 30);
  EXPECT_THAT(refusal_of_text(large), HasSubstr("more than 16777216 bytes"));
  EXPECT_THAT(refusal_of_text(directory / "none"), HasSubstr("No such file"));
}

TEST(TextFile, IsWrittenWholeOrNotAtAll) {
  const TemporaryDirectory directory;
  const std::string path = directory / "new/file";
  EXPECT_TRUE(write_text_file(path, "old"));
  EXPECT_TRUE(write_text_file(path, "new"));
  EXPECT_EQ(text_of_file(path, path), "new");
  std::filesystem::create_directory(directory / "new/directory");
  EXPECT_FALSE(write_text_file(directory / "new/directory", "text"));
  EXPECT_FALSE(write_text_file("/dev/null/file", "text"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory / "new"), std::filesystem::directory_iterator()), 2);
}

}  // namespace
}  // namespace stretto
