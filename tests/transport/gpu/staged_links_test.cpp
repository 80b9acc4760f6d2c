// Messages between GPUs through blocks of the host's memory or of the GPUs' memory.
#include "transport/gpu/staged_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/gpu/host_staging.hpp"
#include "transport/gpu/ipc_staging.hpp"
#include "transport/linked_ranks.hpp"

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

enum class Blocks { of_the_host, of_the_gpu };

// Tests over each kind of staging. All ranks are threads of one process here, so they reach a GPU's blocks without a handle;
// collectives/execution/gpu_processes_test.cpp has processes.
class StagedLinksOver : public testing::TestWithParam<Blocks> {
 protected:
  static constexpr IpcBlocks few_small{2, 4096};
  static std::size_t block_bytes() { return GetParam() == Blocks::of_the_host ? HostStaging::block_bytes : few_small.bytes; }
  static std::unique_ptr<GpuLinks> make(HostGpu& gpu, Links& links, JobControl& job) {
    if (GetParam() == Blocks::of_the_host) {
      return std::make_unique<StagedLinks>(gpu, links, std::make_unique<HostStaging>(gpu, links));
    }
    IpcStaging::SetUp by_ipc = IpcStaging::set_up(
        gpu, links, [&](const Bytes& mine) { return job.exchange(mine); },
        std::vector<bool>(static_cast<std::size_t>(job.size()), true), few_small);
    EXPECT_EQ(by_ipc.obstacle, "");
    return std::make_unique<StagedLinks>(gpu, links, std::move(by_ipc.staging));
  }

  // Makes the exchanges on all ranks and returns the number of wrong bytes. Checks that no resource is left afterwards.
  static std::size_t wrong_in(const std::vector<std::vector<Posted>>& exchanges, int size, const HostGpuOptions& options) {
    HostGpu gpu(options);
    std::vector<std::size_t> wrong(static_cast<std::size_t>(size));
    EXPECT_THAT(on_linked_ranks(size,
                                [&](Links& links, JobControl& job) {
                                  const int rank = job.rank();
                                  const StreamInUse stream(gpu);
                                  const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                                  std::mt19937_64 chance(static_cast<std::uint64_t>(rank));
                                  for (const std::vector<Posted>& posted : exchanges) {
                                    wrong[rank] += wrong_bytes(posted, rank, chance, gpu, stream, *staged);
                                  }
                                }),
                Each(""));
    if (!options.ignores_waits && !options.foresees_events) {
      EXPECT_THAT(gpu.violations(), IsEmpty());
    }
    EXPECT_EQ(gpu.pinned_bytes_in_use(), 0U);
    EXPECT_EQ(gpu.shared_bytes_in_use(), 0U);
    EXPECT_EQ(gpu.events_in_use(), 0U);
    EXPECT_EQ(gpu.streams_in_use(), 0U);
    std::size_t sum = 0;
    for (const std::size_t one : wrong) sum += one;
    return sum;
  }
};
INSTANTIATE_TEST_SUITE_P(Blocks, StagedLinksOver, testing::Values(Blocks::of_the_host, Blocks::of_the_gpu),
                         [](const auto& parameter) {
                           return std::string(parameter.param == Blocks::of_the_host ? "OfTheHost" : "OfTheGpu");
                         });

TEST_P(StagedLinksOver, ExchangeWhatIsSent) {
  for (const int size : {1, 2, 3, 5, 8}) {
    EXPECT_EQ(wrong_in(exchanges_of(size), size, {.longest_delay_us = 50, .seed = static_cast<std::uint64_t>(size)}), 0U);
  }
}

TEST_P(StagedLinksOver, CutLongMessagesIntoBlocks) {
  std::vector<Posted> posted;
  for (const std::size_t more : {0, 1, 1234}) {
    for (const std::size_t blocks : {1, 3, 5}) {
      posted.push_back({0, 1, blocks * block_bytes() + more});
      posted.push_back({1, 0, blocks * block_bytes() - more});
    }
  }
  EXPECT_EQ(wrong_in({posted}, 2, {.longest_delay_us = 50}), 0U);
}

// A late receiver does not hold up a sender's other messages, because each peer has its own blocks.
TEST_P(StagedLinksOver, DoNotLetOnePeerHoldUpAnother) {
  HostGpu gpu;
  const std::size_t bytes = 5 * block_bytes();
  EXPECT_THAT(
      on_linked_ranks(3,
                      [&](Links& links, JobControl& job) {
                        const StreamInUse stream(gpu);
                        const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                        const OnGpu<std::uint8_t> data(gpu, stream, bytes, static_cast<std::uint8_t>(job.rank() + 1));
                        if (job.rank() == 0)
                          staged->exchange({{true, data.bytes_at(), bytes, 1}, {true, data.bytes_at(), bytes, 2}}, stream);
                        if (job.rank() == 1) {
                          staged->exchange({{false, data.bytes_at(), bytes, 2}}, stream);
                          staged->exchange({{false, data.bytes_at(), bytes, 0}}, stream);
                        }
                        if (job.rank() == 2) {
                          staged->exchange({{false, data.bytes_at(), bytes, 0}}, stream);
                          staged->exchange({{true, data.bytes_at(), bytes, 1}}, stream);
                        }
                        EXPECT_EQ(data.values()[bytes - 1], 1);
                      }),
      Each(""));
}

TEST(StagedLinks, GoOverUcxAsWell) {
#ifdef STRETTO_HAVE_UCX
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  HostGpu gpu;
  const std::vector<Posted> posted{{0, 1, 3000000}, {1, 2, 2000000}, {2, 0, 1000000}};
  EXPECT_THAT(on_linked_ranks(3,
                              [&](Links& links, JobControl& job) {
                                const StreamInUse stream(gpu);
                                StagedLinks staged(gpu, links, std::make_unique<HostStaging>(gpu, links));
                                for (const auto& messages : {everybody_to_everybody(3), posted}) {
                                  EXPECT_EQ(wrong_bytes(messages, job.rank(), std::mt19937_64(1), gpu, stream, staged), 0U);
                                }
                              }),
              Each(""));
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

// The control: without waits for the stream and for copies, bytes are wrong.
TEST_P(StagedLinksOver, WaitForTheirCopies) {
  // Many messages, so that copies fall behind their announcements; each has other bytes than its block held before.
  const std::vector<std::vector<Posted>> exchanges{std::vector<Posted>(60, {0, 1, 4096})};
  EXPECT_EQ(wrong_in(exchanges, 2, {.longest_delay_us = 1000}), 0U);
#if !defined(__SANITIZE_THREAD__)  // the controls are the races that it would find
  EXPECT_NE(wrong_in(exchanges, 2, {.longest_delay_us = 1000, .foresees_events = true}), 0U);
#endif
}

TEST_P(StagedLinksOver, NoticeALostRank) {
  HostGpu gpu;
  const auto sentences = on_linked_ranks(2, [&](Links& links, JobControl& job) {
    const StreamInUse stream(gpu);
    const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
    if (job.rank() == 1) throw Error(ErrorCode::internal, "no more of this");
    const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{7});
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(sentence_of([&] {
                    staged->exchange({{false, data.bytes_at(), 1, 1}}, stream);
                  }),
                  HasSubstr("no more of this"));
    }
    EXPECT_THAT(staged->failure(), HasSubstr("no more of this"));
    EXPECT_EQ(data.values()[0], 7);
  });
  EXPECT_EQ(sentences[0], "");
}

TEST_P(StagedLinksOver, EndWithAnAbort) {
  HostGpu gpu;
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, JobControl& job) {
                                const StreamInUse stream(gpu);
                                const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                                const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{7});
                                std::thread watch([&] {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                  staged->abort();
                                });
                                EXPECT_THAT(sentence_of([&] {  // no rank sends
                                              staged->exchange({{false, data.bytes_at(), 1, 1 - job.rank()}}, stream);
                                            }),
                                            HasSubstr("has aborted the communicator"));
                                watch.join();
                                EXPECT_EQ(data.values()[0], 7);
                                EXPECT_THAT(staged->failure(), HasSubstr("has aborted the communicator"));
                              }),
              Each(""));
}

// A peer copies from the GPU's blocks, so these must stay until it has copied.
TEST_P(StagedLinksOver, EndWhenPeersHaveTakenWhatTheBlocksHold) {
  HostGpu gpu({.longest_delay_us = 50});
  std::atomic<bool> receives = false;
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, JobControl& job) {
                                const StreamInUse stream(gpu);
                                std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                                const OnGpu<std::uint8_t> data(gpu, stream, 1000, static_cast<std::uint8_t>(job.rank() + 1));
                                if (job.rank() == 1) {
                                  std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                  receives = true;
                                }
                                staged->exchange({{job.rank() == 0, data.bytes_at(), 1000, 1 - job.rank()}}, stream);
                                staged.reset();
                                if (GetParam() == Blocks::of_the_gpu) {
                                  EXPECT_TRUE(receives);
                                }
                                EXPECT_EQ(data.values()[999], 1);
                              }),
              Each(""));
}

TEST_P(StagedLinksOver, SayThatTheyCannotBePartOfAGraph) {
  HostGpu gpu;
  EXPECT_THAT(on_linked_ranks(1,
                              [&](Links& links, JobControl& job) {
                                const StreamInUse stream(gpu);
                                const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                                const OnGpu<std::uint8_t> data(gpu, stream, 2, std::uint8_t{7});
                                gpu.begin_capture(stream);
                                staged->exchange({{true, data.bytes_at(0), 1, 0}, {false, data.bytes_at(1), 1, 0}}, stream);
                                gpu.destroy(gpu.end_capture(stream));  // a rank's own message is a copy
                              }),
              Each(""));
  EXPECT_THAT(on_linked_ranks(2,
                              [&](Links& links, JobControl& job) {
                                const StreamInUse stream(gpu);
                                const std::unique_ptr<GpuLinks> staged = make(gpu, links, job);
                                const OnGpu<std::uint8_t> data(gpu, stream, 1, std::uint8_t{7});
                                gpu.begin_capture(stream);
                                EXPECT_THAT(
                                    sentence_of([&] {
                                      staged->exchange({{job.rank() == 0, data.bytes_at(), 1, 1 - job.rank()}}, stream);
                                    }),
                                    HasSubstr("in a graph"));
                                gpu.destroy(gpu.end_capture(stream));
                              }),
              Each(""));
}

}  // namespace
}  // namespace stretto
