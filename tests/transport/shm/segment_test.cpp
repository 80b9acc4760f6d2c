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
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/variables.hpp"

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
  const std::size_t offset = segment.reserve(10000).offset;
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
  const auto elsewhere = allocate(1);  // makes the process's heap now, outside of the small tmpfs
  const auto sentence_with = [&](const char* size) {
    if (mount("none", directory.path().c_str(), "tmpfs", 0, size) != 0) return "no tmpfs: " + errno_text(errno);
    const Variable place("STRETTO_SHM_DIR", directory.path());
    std::string sentence = sentence_of([] {
      run_threads(2, [](const Communicator& world) {
        const OperationOptions packet{.method = Algorithm::packet};
        world.all_reduce(Tensor::zeros({1}, DType::f32), ReduceOp::sum, Stream::inline_(), packet).wait();
        world.all_reduce(Tensor::zeros({100}, DType::f32), ReduceOp::sum, Stream::inline_(), packet).wait();
      });
    });
    EXPECT_EQ(umount(directory.path().c_str()), 0);
    return sentence;
  };
  const std::string enough = sentence_with("size=1m");
  if (enough.starts_with("no tmpfs")) GTEST_SKIP() << enough;
  EXPECT_EQ(enough, "");
  // For the headers of two segments, and for their first pages, but not for what larger messages take.
  for (const char* size : {"size=8k", "size=16k"}) {
    EXPECT_THAT(sentence_with(size),
                AllOf(HasSubstr("bytes of shared memory in " + directory.path()), HasSubstr("No space left"),
                      HasSubstr("--shm-size"), HasSubstr("set STRETTO_RING_BYTES=65536")))
        << size;
  }
}

TEST(Segment, GivesZeroedMemoryAlsoWhenItWasUsedBefore) {
  constexpr std::size_t bytes = 5000;
  Segment segment;
  const Area first = segment.reserve(bytes);
  const Area beside = segment.reserve(bytes);
  ASSERT_NE(beside.departures, first.departures);
  {
    const Mapping memory(segment.file(), first.offset, bytes);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(memory.data(), 7, bytes);
  }
  segment.release(first, bytes);
  const Area again = segment.reserve(bytes);
  EXPECT_EQ(again.offset, first.offset);  // the released range is reused
  const Mapping memory(segment.file(), again.offset, bytes);
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Segment, OfAPeerIsTheSameMemory) {
  Segment segment;
  const std::size_t offset = segment.reserve(100).offset;
  const PeerSegment peer(segment.address(), 0);
  const Mapping ours(segment.file(), offset, 100);
  const Mapping theirs(peer.file(), offset, 100);
  std::memcpy(ours.data(), "hello", sizeof "hello");
  EXPECT_STREQ(reinterpret_cast<const char*>(theirs.data()), "hello");
}

TEST(Segment, CountsDeparturesOfAnyNumberOfAreas) {
  Segment segment;
  PeerSegment peer(segment.address(), 0);
  std::vector<Area> areas;
  for (std::uint32_t i = 0; i < 3000; ++i) areas.push_back(segment.reserve(1));
  for (std::uint32_t i = 0; i < 3000; ++i) peer.departures().at(areas[i]) += i;
  for (std::uint32_t i = 0; i < 3000; ++i) ASSERT_EQ(segment.departures().at(areas[i]), i);
  const Mapping last(segment.file(), areas.back().offset, 1);
  EXPECT_EQ(*last.data(), std::byte{0});  // no area holds a count
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
