// Messages between GPUs by way of the host's memory.
#include "transport/staged_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "linked_ranks.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

// Exchanges that all ranks make; the number of wrong bytes. Everything is gone afterwards.
std::size_t wrong_in(const std::vector<std::vector<Posted>>& exchanges, int size, const HostGpuOptions& options) {
  HostGpu gpu(options);
  std::vector<std::size_t> wrong(static_cast<std::size_t>(size));
  EXPECT_THAT(on_linked_ranks(size,
                              [&](Links& links, Job& job) {
                                const int rank = job.rank();
                                const StreamInUse stream(gpu);
                                StagedLinks staged(gpu, links);
                                std::mt19937_64 chance(static_cast<std::uint64_t>(rank));
                                for (const std::vector<Posted>& posted : exchanges) {
                                  wrong[rank] += wrong_bytes(posted, rank, chance, gpu, stream, staged);
                                }
                              }),
              Each(""));
  if (!options.ignores_waits) {
    EXPECT_THAT(gpu.violations(), IsEmpty());
  }
  EXPECT_EQ(gpu.pinned_bytes_in_use(), 0U);
  EXPECT_EQ(gpu.events_in_use(), 0U);
  EXPECT_EQ(gpu.streams_in_use(), 0U);
  std::size_t sum = 0;
  for (const std::size_t one : wrong) sum += one;
  return sum;
}

TEST(StagedLinks, ExchangeWhatIsSent) {
  for (const int size : {1, 2, 3, 5, 8}) {
    std::mt19937_64 chance(static_cast<std::uint64_t>(size));
    std::vector<std::vector<Posted>> exchanges{everybody_to_everybody(size), ring(size), {}};
    for (int i = 0; i < 10; ++i) exchanges.push_back(random_exchange(size, chance));
    EXPECT_EQ(wrong_in(exchanges, size, {.longest_delay_us = 50, .seed = static_cast<std::uint64_t>(size)}), 0U);
  }
}

TEST(StagedLinks, CutLongMessagesIntoBlocks) {
  std::vector<Posted> posted;
  for (const std::size_t more : {0, 1, 12345}) {
    for (const std::size_t blocks : {1, 3, 5}) {
      posted.push_back({0, 1, blocks * Staging::block_bytes + more});
      posted.push_back({1, 0, blocks * Staging::block_bytes - more});
    }
  }
  EXPECT_EQ(wrong_in({posted}, 2, {.longest_delay_us = 50}), 0U);
}

TEST(StagedLinks, GoOverUcxAsWell) {
#ifdef STRETTO_HAVE_UCX
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_EQ(wrong_in({everybody_to_everybody(3), {{0, 1, 3000000}, {1, 2, 2000000}, {2, 0, 1000000}}}, 3, {}), 0U);
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

// The control: a stream that does not wait finds wrong bytes.
TEST(StagedLinks, MakeTheStreamWait) {
  const std::vector<std::vector<Posted>> exchanges{{{0, 1, 1000}, {1, 0, 1000}}};
  EXPECT_EQ(wrong_in(exchanges, 2, {}), 0U);
  EXPECT_NE(wrong_in(exchanges, 2, {.ignores_waits = true}), 0U);
}

// Both ranks issue whole programs of exchanges while their streams have not even begun.
TEST(StagedLinks, DoNotHoldUpWhoIssuesThem) {
  HostGpu gpu;
  EXPECT_THAT(
      on_linked_ranks(
          2,
          [&](Links& links, Job& job) {
            const int rank = job.rank();
            const StreamInUse stream(gpu);
            StagedLinks staged(gpu, links);
            const OnGpu<std::uint8_t> data(gpu, stream, 2, static_cast<std::uint8_t>(rank + 1));
            const auto open = std::make_shared<Marker>();
            gpu.put(stream, [open] { open->wait(); });
            for (int i = 0; i < 20; ++i) {
              staged.exchange({{true, data.bytes_at(0), 1, 1 - rank}, {false, data.bytes_at(1), 1, 1 - rank}}, stream);
            }
            open->reach(0);
            EXPECT_EQ(data.values()[1], 2 - rank);
          }),
      Each(""));
}

// One communicator's stream waits for a peer that comes after the other's: a thread each.
TEST(StagedLinks, OfTwoCommunicatorsGoInAnyOrder) {
  HostGpu gpu;
  EXPECT_THAT(
      on_linked_ranks(
          2,
          [&](Links& links, Job& job) {
            const int rank = job.rank();
            const std::uint64_t area = links.network().segment().reserve(Links::area_bytes(2));
            const auto* bytes = reinterpret_cast<const std::byte*>(&area);
            Membership members = links.membership();
            members.id = 1;
            members.areas.clear();
            for (const Bytes& said : job.exchange(Bytes(bytes, bytes + sizeof area))) {
              std::uint64_t theirs = 0;
              std::memcpy(&theirs, said.data(), sizeof theirs);
              members.areas.push_back(theirs);
            }
            Links others(links.network(), members, 2);
            const StreamInUse a(gpu), b(gpu);
            StagedLinks one(gpu, links), other(gpu, others);
            const OnGpu<std::uint8_t> data(gpu, a, 4, static_cast<std::uint8_t>(rank + 1));
            data.values();
            const auto go = [&](StagedLinks& over, std::size_t at, GpuStream stream) {
              over.exchange({{true, data.bytes_at(at), 1, 1 - rank}, {false, data.bytes_at(at + 1), 1, 1 - rank}}, stream);
            };
            rank == 0 ? go(one, 0, a) : go(other, 2, b);
            rank == 0 ? go(other, 2, b) : go(one, 0, a);
            gpu.wait_until_here(b, "the test");
            EXPECT_EQ(data.values()[1], 2 - rank);
            EXPECT_EQ(data.values()[3], 2 - rank);
          }),
      Each(""));
}

TEST(StagedLinks, NoticeALostRankAndLetStreamsGoWithAnAbort) {
  HostGpu gpu;
  const auto sentences = on_linked_ranks(2, [&](Links& links, Job& job) {
    if (job.rank() == 1) throw Error(ErrorCode::internal, "no more of this");
    const StreamInUse stream(gpu);
    StagedLinks staged(gpu, links);
    const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{7});
    staged.exchange({{false, data.bytes_at(), 1, 1}}, stream);
    while (staged.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_THAT(staged.failure(), HasSubstr("no more of this"));
    std::atomic<bool> passed = false;
    gpu.put(stream, [&] { passed = true; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(passed);
    staged.abort();
    EXPECT_EQ(data.values()[0], 7);
    EXPECT_THAT(sentence_of([&] {
                  staged.exchange({{false, data.bytes_at(), 1, 1}}, stream);
                }),
                HasSubstr("no more of this"));
  });
  EXPECT_EQ(sentences[0], "");
}

TEST(StagedLinks, EndWithAnAbort) {
  HostGpu gpu;
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, Job& job) {
                                const StreamInUse stream(gpu);
                                StagedLinks staged(gpu, links);
                                const OnGpu<std::uint8_t> data(gpu, stream, 2, std::uint8_t{7});
                                const int other = 1 - job.rank();
                                staged.exchange({{false, data.bytes_at(), 1, other}}, stream);  // nobody sends
                                staged.exchange({{true, data.bytes_at(1), 1, other}}, stream);
                                staged.abort();
                                EXPECT_EQ(data.values()[0], 7);
                                EXPECT_THAT(staged.failure(), HasSubstr("has aborted the communicator"));
                              }),
              Each(""));
}

TEST(StagedLinks, SayThatTheyCannotBePartOfAGraph) {
  HostGpu gpu;
  EXPECT_THAT(on_linked_ranks(1,
                              [&](Links& links, Job&) {
                                const StreamInUse stream(gpu);
                                StagedLinks staged(gpu, links);
                                const OnGpu<std::uint8_t> data(gpu, stream, 2, std::uint8_t{7});
                                gpu.begin_capture(stream);
                                staged.exchange({{true, data.bytes_at(0), 1, 0}, {false, data.bytes_at(1), 1, 0}}, stream);
                                gpu.destroy(gpu.end_capture(stream));  // a copy is no message
                              }),
              Each(""));
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, Job& job) {
                                const StreamInUse stream(gpu);
                                StagedLinks staged(gpu, links);
                                const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{7});
                                gpu.begin_capture(stream);
                                EXPECT_THAT(
                                    sentence_of([&] {
                                      staged.exchange({{job.rank() == 0, data.bytes_at(), 1, 1 - job.rank()}}, stream);
                                    }),
                                    HasSubstr("in a graph"));
                                gpu.destroy(gpu.end_capture(stream));
                              }),
              Each(""));
}

}  // namespace
}  // namespace stretto
