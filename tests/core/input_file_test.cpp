#include "core/files/input_file.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

TEST(InputFiles, AreReadInParts) {
  const TemporaryDirectory directory;
  const InputFile file(directory.write("file", "0123456789"));
  EXPECT_EQ(file.size(), 10U);
  std::string part(4, ' ');
  file.read(3, part.data(), part.size());
  EXPECT_EQ(part, "3456");
  file.read(10, part.data(), 0);
}

TEST(InputFiles, ThatAreCutOffMeanwhileAreAnError) {
  const TemporaryDirectory directory;
  const InputFile file(directory.write("file", "0123456789"));
  std::filesystem::resize_file(file.path(), 5);
  std::string part(4, ' ');
  file.read(1, part.data(), part.size());
  EXPECT_EQ(part, "1234");
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { file.read(3, part.data(), part.size()); }),
              testing::AllOf(testing::HasSubstr(file.path() + " had 10 bytes and has 5 now"), testing::EndsWith(".")));
  const InputFile again(file.path(), 10);
  EXPECT_EQ(again.size(), 10U);
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { again.read(5, part.data(), 1); }), testing::HasSubstr("had 10 bytes"));
}

TEST(InputFiles, ThatAreNoFilesHaveNoBytes) {
  const TemporaryDirectory directory;
  EXPECT_EQ(InputFile(directory.path()).size(), 0U);
  EXPECT_EQ(InputFile("/dev/zero").size(), 0U);
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { InputFile(directory / "missing"); }),
              testing::HasSubstr(directory / "missing: No such file"));
}

}  // namespace
}  // namespace stretto
