#include "stretto/file_rate.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

TEST(FileRate, IsOfAFileThatLeavesNothingBehind) {
  const TemporaryDirectory directory;
  EXPECT_GT(measured_file_rate(directory.path(), 1 << 20), 0);
  EXPECT_GT(measured_file_rate(directory.path(), 1), 0) << "a whole block each way";
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(FileRate, RefusesWhatCannotBeMeasured) {
  EXPECT_THAT(sentence_of([] { measured_file_rate("/none"); }), testing::HasSubstr("/none cannot hold a scratch file"));
  expect_refusal([] { measured_file_rate("/tmp", 0); }, "with 0 bytes");
}

}  // namespace
}  // namespace stretto
