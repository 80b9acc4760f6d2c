#include "apps/train/data/token_writer.hpp"

#include <gmock/gmock.h>

#include "apps/train/data/token_file.hpp"
#include "stretto/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

using stretto::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(TokenWriter, WritesWhatTokenFileReads) {
  const TemporaryDirectory directory;
  const std::vector<std::int32_t> tokens = {50256, 1, 2, 3};
  const auto written = [&](apps::DataFormat format, std::int64_t vocabulary) {
    apps::TokenWriter writer(directory / "x.bin", format, vocabulary);
    writer.write(tokens);
    writer.end_document();
    writer.write(std::span(tokens).first(2));
    EXPECT_FALSE(std::filesystem::exists(directory / "x.bin")) << "it is not complete";
    writer.finish();
    const apps::TokenFile file = apps::TokenFile::open(directory / "x.bin", format);
    std::vector<std::int32_t> read(6);
    EXPECT_EQ(file.size(), 6);
    file.read(0, 6, vocabulary, read.data());
    EXPECT_THAT(read, ElementsAre(50256, 1, 2, 3, 50256, 1));
    std::string description = file.description();
    std::filesystem::remove(directory / "x.bin");
    return description;
  };
  using apps::DataFormat;
  EXPECT_THAT(written(DataFormat::llmc, 50257), HasSubstr("llm.c, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::nanogpt, 50257), HasSubstr("nanogpt, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::megatron, 50257), HasSubstr("megatron, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::megatron, 100000), HasSubstr("megatron, 6 tokens of 32 bits"));
  EXPECT_THROW(apps::TokenWriter(directory / "y.bin", DataFormat::llmc, 100000), stretto::Error);
  EXPECT_THROW(apps::TokenWriter(directory / "y.bin", DataFormat::bytes, 256), stretto::Error);
  EXPECT_THROW(apps::TokenWriter(directory / "nowhere/y.bin", DataFormat::llmc, 256), stretto::Error);
  apps::TokenWriter(directory / "abandoned.bin", DataFormat::llmc, 256).write(std::span(tokens));
  std::filesystem::remove(directory / "x.idx");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace parity
