#include "core/files/scratch_file.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<unsigned char, Free>;

Block block_of(std::int64_t bytes, int first) {
  Block block(static_cast<unsigned char*>(
      std::aligned_alloc(static_cast<std::size_t>(ScratchFile::alignment), static_cast<std::size_t>(bytes))));
  for (std::int64_t i = 0; i < bytes; ++i) block.get()[i] = static_cast<unsigned char>(first + i * 7);
  return block;
}

void expect_works(const std::string& directory, IoEngine engine = IoEngine::any) {
  constexpr std::int64_t size = 3 * ScratchFile::alignment;
  ScratchFile file(directory, size - 5, engine);
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "nothing is left behind, however the process ends";
  const Block written = block_of(size, 1), read = block_of(size, 2);
  file.read(0, read.get(), size);
  EXPECT_THAT(std::vector<unsigned char>(read.get(), read.get() + size), testing::Each(0));
  file.write(0, written.get(), size);
  file.read(0, read.get(), size);
  EXPECT_EQ(std::memcmp(written.get(), read.get(), size), 0);
  EXPECT_EQ(std::memcmp(written.get(), file.mapped(), size), 0);
  file.mapped()[size - 1] = std::byte{99};
  file.forget(0, size);
  EXPECT_EQ(file.mapped()[size - 1], std::byte{99});
  file.read(2 * ScratchFile::alignment, read.get(), ScratchFile::alignment);
  EXPECT_EQ(read.get()[ScratchFile::alignment - 1], 99);
  EXPECT_EQ(file.mapped()[0], static_cast<std::byte>(written.get()[0]));
}

TEST(ScratchFile, HoldsWhatIsWritten) {
  const TemporaryDirectory directory;
  expect_works(directory.path());
}

TEST(ScratchFile, WorksWithoutDirectAccess) {
  const std::string path = "/dev/shm/stretto-scratch-test";
  std::filesystem::create_directories(path);
  expect_works(path);
  expect_works(path, IoEngine::calls);
  std::filesystem::remove_all(path);
}

TEST(ScratchFile, WorksWithoutIoUring) {
  const TemporaryDirectory directory;
  expect_works(directory.path(), IoEngine::calls);
}

TEST(ScratchFile, SaysWhyItCannotBe) {
  EXPECT_THAT(sentence_of([] { ScratchFile("/none", 1); }),
              testing::HasSubstr("/none cannot hold a scratch file: No such file"));
  const TemporaryDirectory directory;
  EXPECT_THAT(sentence_of([&] { ScratchFile(directory.path(), std::int64_t{1} << 55); }),
              testing::HasSubstr("has no room for"));
  EXPECT_TRUE(std::filesystem::is_empty(std::string(directory.path())));
}

}  // namespace
}  // namespace stretto
