#include "core/files/io_ring.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

class IoRingOf : public testing::TestWithParam<IoEngine> {
 protected:
  void SetUp() override {
    path_ = std::string(directory_.path()) + "/file";
    file_ = open(path_.c_str(), O_RDWR | O_CREAT, 0600);
    ASSERT_GE(file_, 0);
  }
  void TearDown() override { close(file_); }

  TemporaryDirectory directory_;
  std::string path_;
  int file_ = -1;
  IoRing ring_{GetParam()};
};

std::vector<std::uint8_t> random_bytes(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(size));
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

// Around a piece, around all pieces that may be under way, and primes.
TEST_P(IoRingOf, LosesNoTail) {
  const std::int64_t piece = IoRing::piece_bytes, all = piece * IoRing::depth;
  for (const std::int64_t size : {std::int64_t{1}, std::int64_t{511}, std::int64_t{513}, std::int64_t{7919}, piece - 1,
                                  piece, piece + 1, all - 1, all, all + 1, 2 * all + 104729}) {
    const std::vector<std::uint8_t> written = random_bytes(size, static_cast<unsigned>(size));
    std::vector<std::uint8_t> read(written.size());
    ASSERT_EQ(ring_.write(file_, 17, written.data(), size), 0) << size;
    ASSERT_EQ(ring_.read(file_, 17, read.data(), size), 0) << size;
    EXPECT_TRUE(read == written) << size;
  }
}

TEST_P(IoRingOf, ReadsOfAFileThatEndsTooEarlySaySo) {
  ASSERT_EQ(ftruncate(file_, 3 * IoRing::piece_bytes + 5), 0);
  std::vector<std::uint8_t> read(4 * IoRing::piece_bytes);
  EXPECT_EQ(ring_.read(file_, 0, read.data(), static_cast<std::int64_t>(read.size())), ENODATA);
  EXPECT_EQ(ring_.read(file_, 0, read.data(), 3 * IoRing::piece_bytes + 5), 0) << "nothing of the failed call is left";
}

TEST_P(IoRingOf, ErrorsAreReturned) {
  const int reads_only = open(path_.c_str(), O_RDONLY);
  std::vector<std::uint8_t> bytes(20 * IoRing::piece_bytes);
  EXPECT_EQ(ring_.write(reads_only, 0, bytes.data(), static_cast<std::int64_t>(bytes.size())), EBADF);
  close(reads_only);
  EXPECT_EQ(ring_.write(file_, 0, bytes.data(), static_cast<std::int64_t>(bytes.size())), 0);
}

INSTANTIATE_TEST_SUITE_P(Engines, IoRingOf, testing::Values(IoEngine::any, IoEngine::calls),
                         [](const auto& engine) { return engine.param == IoEngine::any ? "Any" : "Calls"; });

// Without memory that may be locked, as under `ulimit -l 64`.
TEST(IoRing, NeedsNoLockedMemory) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit little{64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &little), 0);
  const bool wanted = IoRing(IoEngine::any).has_uring();
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(wanted, IoRing(IoEngine::any).has_uring());
}

}  // namespace
}  // namespace stretto
