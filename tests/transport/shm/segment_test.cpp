// A rank's shared memory has no name, and its errors say which memory is missing.
#include "transport/shm/segment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/fail.hpp"
#include "stretto/stretto.hpp"
#include "temporary_directory.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string link_of(int file) { return fs::read_symlink("/proc/self/fd/" + std::to_string(file)); }

TEST(Segment, HasNoNameAnywhere) {
  const Segment segment;
  EXPECT_EQ(link_of(segment.file()), "/memfd:stretto (deleted)");
}

TEST(Segment, HasNoNameInAGivenDirectoryEither) {
  const TemporaryDirectory directory;
  const Variable place("STRETTO_SHM_DIR", directory.path());
  Segment segment;
  const std::size_t offset = segment.reserve(10000);
  const Mapping memory(segment.file(), offset, 10000);
  std::memset(memory.data(), 1, 10000);
  EXPECT_THAT(link_of(segment.file()), testing::StartsWith(directory.path()));
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(Segment, SaysWhichDirectoryItCannotUse) {
  const Variable place("STRETTO_SHM_DIR", "/nowhere/at/all");
  EXPECT_THAT(sentence_of([] { Segment segment; }),
              AllOf(HasSubstr("STRETTO_SHM_DIR=/nowhere/at/all"), HasSubstr("No such file")));
}

// The first touch of overcommitted memory would end a process with SIGBUS, so the segment allocates it before.
TEST(Segment, SaysThatATmpfsIsTooSmall) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs takes root";
  const TemporaryDirectory directory;
  if (mount("none", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a tmpfs cannot be mounted here: " << errno_text(errno);
  }
  const auto elsewhere = allocate(1);  // makes the process's heap now, outside of the small tmpfs
  const Variable place("STRETTO_SHM_DIR", directory.path());
  const std::string sentence = sentence_of([] {
    run_threads(2, [](const Communicator& world) {
      world.all_reduce(Tensor::zeros({1000}, DType::f32), ReduceOp::sum, Stream::inline_()).wait();
    });
  });
  EXPECT_EQ(umount(directory.path().c_str()), 0);
  EXPECT_THAT(sentence, AllOf(HasSubstr("bytes of shared memory in " + directory.path()), HasSubstr("No space left"),
                              HasSubstr("--shm-size"), HasSubstr("STRETTO_RING_BYTES=262144")));
}

TEST(Segment, GivesZeroedMemoryAlsoWhenItWasUsedBefore) {
  constexpr std::size_t bytes = 5000;
  Segment segment;
  const std::size_t first = segment.reserve(bytes);
  const std::size_t beside = segment.reserve(bytes);
  ASSERT_GE(beside, first + bytes);
  {
    const Mapping memory(segment.file(), first, bytes);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(memory.data(), 7, bytes);
  }
  segment.release(first, bytes);
  const std::size_t again = segment.reserve(bytes);
  EXPECT_EQ(again, first);  // the released range is reused
  const Mapping memory(segment.file(), again, bytes);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Segment, OfAPeerIsTheSameMemory) {
  Segment segment;
  const std::size_t offset = segment.reserve(100);
  const PeerSegment peer(segment.address(), 0);
  const Mapping ours(segment.file(), offset, 100);
  const Mapping theirs(peer.file(), offset, 100);
  std::memcpy(ours.data(), "hello", sizeof "hello");
  EXPECT_STREQ(reinterpret_cast<const char*>(theirs.data()), "hello");
}

TEST(Segment, OfAPeerThatIsAnotherOneIsRefused) {
  const Segment segment;
  SegmentAddress address = segment.address();
  ++address.check;
  EXPECT_THAT(sentence_of([&] { PeerSegment(address, 3); }), AllOf(HasSubstr("rank 3"), HasSubstr("not the segment")));
  address.file = 1 << 20;
  EXPECT_THAT(sentence_of([&] { PeerSegment(address, 3); }), AllOf(HasSubstr("rank 3"), HasSubstr("has left the job")));
}

}  // namespace
}  // namespace stretto
