// Messages and collectives over NCCL; the stand-in reports violations of NCCL's rules.
#include "transport/nccl/nccl_links.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "collectives/oracle.hpp"
#include "stand_in/host_nccl.hpp"
#include "support/error.hpp"
#include "transport/gpu/gpu_ranks.hpp"

namespace stretto {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

void look() {}

std::function<std::unique_ptr<GpuLinks>(int)> nccl_links(HostNccl& nccl, HostGpu& gpu, int size) {
  return [&nccl, &gpu, size, id = nccl.new_id()](int rank) {
    return std::make_unique<NcclLinks>(nccl, gpu, NcclMember{rank, size, 9}, id, look);
  };
}

TEST(NcclLinks, ExchangeWhatIsSent) {
  for (const int size : {2, 3, 5, 8}) {
    HostGpu gpu({.longest_delay_us = 50, .seed = static_cast<std::uint64_t>(size)});
    HostNccl nccl(gpu);
    EXPECT_EQ(wrong_in_all(exchanges_of(size), size, gpu, nccl_links(nccl, gpu, size)), 0U);
    EXPECT_THAT(nccl.violations(), IsEmpty());
    EXPECT_THAT(gpu.violations(), IsEmpty());
  }
}

TEST(NcclLinks, LeaveEmptyMessagesAndThoseToOneselfToTheStream) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const std::vector<Posted> posted{{0, 0, 10}, {1, 1, 5}, {0, 1, 0}, {1, 0, 0}};
  EXPECT_EQ(wrong_in_all({posted}, 2, gpu, nccl_links(nccl, gpu, 2)), 0U);
  EXPECT_EQ(nccl.functions_put(), 0U);
  EXPECT_EQ(wrong_in_all({everybody_to_everybody(2)}, 2, gpu, nccl_links(nccl, gpu, 2)), 0U);
  EXPECT_EQ(nccl.functions_put(), 2U);
}

TEST(NcclLinks, OfTwoCommunicatorsTakeTurns) {
  HostGpu gpu({.longest_delay_us = 50});
  HostNccl nccl(gpu);
  expect_turns_of(nccl_links(nccl, gpu, 3), nccl_links(nccl, gpu, 3), gpu);
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

// ---- collectives

template <class T>
void check_collective(GpuCollective call, bool in_place, int size, HostGpu& gpu, HostNccl& nccl) {
  const auto links_of = nccl_links(nccl, gpu, size);
  call.dtype = dtype_of<T>;
  const auto sentences = on_ranks(size, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    ASSERT_TRUE(links->collectives()->does(call));
    const oracle::Problem problem{.collective = call.collective,
                                  .size = size,
                                  .count = call.count,
                                  .dtype = call.dtype,
                                  .op = call.op,
                                  .root = call.root};
    const std::int64_t inputs = input_count(problem.request(rank)), outputs = output_count(problem.request(rank));
    const bool gathers = call.collective == Collective::all_gather;
    const bool scatters = call.collective == Collective::reduce_scatter;
    // In place, the own share lies at its position among all shares.
    std::vector<T> values(static_cast<std::size_t>(in_place ? std::max(inputs, outputs) : inputs));
    const std::int64_t first = gathers && in_place ? call.count * rank : 0;
    for (std::int64_t i = 0; i < inputs; ++i)
      values[static_cast<std::size_t>(first + i)] = static_cast<T>(problem.input(rank, i));
    const OnGpu<T> input(gpu, stream, values);
    const OnGpu<T> apart(gpu, stream, static_cast<std::size_t>(call.count * size), T{});
    const OnGpu<T>& output = in_place ? input : apart;
    const std::int64_t result_at = in_place && scatters ? call.count * rank : 0;
    GpuCollective mine = call;
    mine.input = input.bytes_at(static_cast<std::size_t>(first));
    mine.output = output.bytes_at(static_cast<std::size_t>(result_at));
    if (!in_place && call.collective == Collective::broadcast && rank != call.root) mine.input = nullptr;
    if (!in_place && call.collective == Collective::reduce && rank != call.root) mine.output = nullptr;
    links->collectives()->perform(mine, stream);
    const std::vector<T> got = output.values();
    for (std::int64_t i = 0; i < outputs; ++i) {
      ASSERT_EQ(got[static_cast<std::size_t>(result_at + i)], static_cast<T>(problem.expected(rank, i)))
          << name(call.collective) << " by " << name(call.op) << " of " << name(call.dtype) << ", rank " << rank << " of "
          << size << ", element " << i << (in_place ? ", in place" : "");
    }
  });
  EXPECT_THAT(sentences, Each(""));
}

TEST(NcclLinks, DoCollectivesByThemselves) {
  for (const int size : {1, 2, 3, 4}) {
    HostGpu gpu({.longest_delay_us = 20});
    HostNccl nccl(gpu);
    for (const Collective collective : {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                        Collective::all_to_all, Collective::broadcast, Collective::reduce}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::prod, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
        if (op != ReduceOp::sum && !reduces(collective)) continue;
        for (const std::int64_t count : {1, 50}) {
          GpuCollective call;
          call.collective = collective;
          call.op = op;
          call.count = count;
          call.root = size - 1;
          for (const bool in_place : {false, true}) {
            if (in_place && collective == Collective::all_to_all) continue;
            check_collective<float>(call, in_place, size, gpu, nccl);
          }
          check_collective<std::int32_t>(call, false, size, gpu, nccl);
        }
      }
    }
    EXPECT_THAT(nccl.violations(), IsEmpty());
    EXPECT_THAT(gpu.violations(), IsEmpty());
  }
}

// The average must divide the sum: 6/3 is 2, but 1/3 + 2/3 + 3/3 in bf16 is not.
TEST(NcclLinks, DivideAnAverageOnce) {
  GpuCollective call;
  call.op = ReduceOp::avg;
  call.count = 40;
  HostGpu gpu;
  HostNccl nccl(gpu);
  for (const int size : {3, 5, 6, 7}) {
    const auto links_of = nccl_links(nccl, gpu, size);
    EXPECT_THAT(on_ranks(size,
                         [&](int rank) {
                           const StreamInUse stream(gpu);
                           const auto links = links_of(rank);
                           const OnGpu<bf16> data(gpu, stream, 40, bf16(static_cast<float>(rank + 1)));
                           GpuCollective mine = call;
                           mine.dtype = DType::bf16;
                           mine.input = mine.output = data.bytes_at();
                           links->collectives()->perform(mine, stream);
                           const float mean = static_cast<float>(size + 1) / 2;
                           for (const bf16 value : data.values()) ASSERT_EQ(static_cast<float>(value), mean);
                         }),
                Each(""));
  }
}

TEST(NcclLinks, LeaveToPlansWhatNcclHasNot) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const NcclLinks hopper(nccl, gpu, {0, 1, 9}, nccl.new_id(), look);
  const NcclLinks ampere(nccl, gpu, {0, 1, 8}, nccl.new_id(), look);
  GpuCollective call;
  call.op = ReduceOp::premul_sum;
  EXPECT_FALSE(hopper.does(call));
  call.op = ReduceOp::sum;
  for (const DType dtype : {DType::f8e4m3, DType::f8e5m2}) {
    call.dtype = dtype;
    EXPECT_TRUE(hopper.does(call));
    EXPECT_FALSE(ampere.does(call));
  }
  call.collective = Collective::all_gather;
  EXPECT_TRUE(ampere.does(call));
  for (const Collective collective : {Collective::gather, Collective::scatter, Collective::barrier, Collective::send}) {
    call.collective = collective;
    EXPECT_FALSE(hopper.does(call)) << name(collective);
  }
}

TEST(NcclLinks, BecomePartOfAGraphThatCommunicatesAgain) {
  HostGpu gpu({.longest_delay_us = 50});
  HostNccl nccl(gpu);
  const auto links_of = nccl_links(nccl, gpu, 3);
  const auto sentences = on_ranks(3, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    const OnGpu<std::int32_t> data(gpu, stream, 4, rank + 1);
    const OnGpu<std::int32_t> from_left(gpu, stream, 4, 0);
    gpu.begin_capture(stream);
    links->exchange({{true, data.bytes_at(), 16, (rank + 1) % 3}, {false, from_left.bytes_at(), 16, (rank + 2) % 3}},
                    stream);
    GpuCollective sum;
    sum.dtype = DType::i32;
    sum.count = 4;
    sum.input = sum.output = data.bytes_at();
    links->collectives()->perform(sum, stream);
    const GpuGraph graph = gpu.end_capture(stream);
    EXPECT_EQ(data.values()[0], rank + 1);  // capture does not run the operations
    for (const int before : {(rank + 2) % 3 + 1, 6, 18}) {
      gpu.launch(graph, stream);
      EXPECT_EQ(from_left.values()[3], before);
    }
    EXPECT_EQ(data.values()[3], 54);
    gpu.destroy(graph);
  });
  EXPECT_THAT(sentences, Each(""));
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST(NcclLinks, EndWithAnAbortThatLetsStreamsGoOn) {
  HostGpu gpu;
  HostNccl nccl(gpu, 60);
  const auto links_of = nccl_links(nccl, gpu, 2);
  EXPECT_THAT(on_ranks(2,
                       [&](int rank) {
                         const StreamInUse stream(gpu);
                         const auto links = links_of(rank);
                         const OnGpu<std::int32_t> data(gpu, stream, 4, 0);
                         if (rank == 0) links->exchange({{false, data.bytes_at(), 16, 1}}, stream);
                         links->abort();
                         EXPECT_EQ(data.values()[0], 0);
                         EXPECT_THAT(links->failure(), HasSubstr("aborted"));
                         EXPECT_THAT(sentence_of([&] {
                                       links->exchange({{false, data.bytes_at(), 16, 1}}, stream);
                                     }),
                                     HasSubstr("aborted"));
                       }),
              Each(""));
}

TEST(NcclLinks, ConnectWhenTheyFirstMeet) {
  for (const int size : {2, 3, 4}) {
    HostGpu gpu({.longest_delay_us = 50});
    HostNccl nccl(gpu);
    nccl.connect_first();
    std::mt19937_64 chance(static_cast<std::uint64_t>(size));
    std::vector<std::vector<Posted>> exchanges{ring(size), everybody_to_everybody(size)};
    for (int i = 0; i < 4; ++i) exchanges.push_back(random_exchange(size, chance));
    EXPECT_EQ(wrong_in_all(exchanges_of(size), size, gpu, nccl_links(nccl, gpu, size)), 0U);
    GpuCollective call;
    call.count = 50;
    check_collective<float>(call, false, size, gpu, nccl);
    EXPECT_THAT(nccl.violations(), IsEmpty());
  }
}

// One thread waits for a peer that does not come, and another thread aborts.
TEST(NcclLinks, EndAConnectionWithAnAbort) {
  HostGpu gpu;
  HostNccl nccl(gpu, 60);
  nccl.connect_first();
  const auto links_of = nccl_links(nccl, gpu, 2);
  EXPECT_THAT(on_ranks(2,
                       [&](int rank) {
                         const StreamInUse stream(gpu);
                         const auto links = links_of(rank);
                         if (rank == 1) return links->abort();
                         const OnGpu<std::int32_t> data(gpu, stream, 4, 0);
                         std::thread other([&] {
                           std::this_thread::sleep_for(std::chrono::milliseconds(30));
                           EXPECT_EQ(links->failure(), "");
                           links->abort();
                         });
                         EXPECT_THAT(sentence_of([&] {
                                       links->exchange({{false, data.bytes_at(), 16, 1}}, stream);
                                     }),
                                     HasSubstr("aborted"));
                         other.join();
                       }),
              Each(""));
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

// NCCL allows calls on a communicator from one thread at a time, including abort and the query for errors.
TEST(NcclLinks, AreAskedAndAbortedByOtherThreads) {
  HostGpu gpu;
  HostNccl nccl(gpu, 60);
  nccl.take_long(200);
  const auto links_of = nccl_links(nccl, gpu, 2);
  on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const auto links = links_of(rank);
    const OnGpu<std::uint8_t> data(gpu, stream, 2, std::uint8_t{0});
    std::thread other([&] {
      for (int i = 0; i < 20; ++i) links->failure();
      links->abort();
    });
    EXPECT_THAT(sentence_of([&] {
                  for (int i = 0; i < 1000; ++i) {
                    links->exchange({{true, data.bytes_at(0), 1, 1 - rank}, {false, data.bytes_at(1), 1, 1 - rank}}, stream);
                  }
                }),
                HasSubstr("aborted"));
    other.join();
    data.values();
  });
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

TEST(NcclLinks, OverACommunicatorOfTheProgramLeaveItThere) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const NcclComm comm = nccl.join(1, nccl.new_id(), 0, look);
  { NcclLinks links(nccl, gpu, {0, 1, 9}, comm); }
  { NcclLinks(nccl, gpu, {0, 1, 9}, comm).abort(); }
  EXPECT_EQ(nccl.failure(comm), "");
  nccl.destroy(comm);
  EXPECT_THAT(nccl.violations(), IsEmpty());
}

#ifdef STRETTO_HAVE_NCCL
TEST(NcclLibrary, SaysInASentenceWhatItIsWithout) {
  if (has_gpu()) GTEST_SKIP() << "there is a GPU here";
  ASSERT_NE(nccl(), nullptr);
  EXPECT_THAT(sentence_of([] { nccl()->new_id(); }), HasSubstr("CUDA"));
  EXPECT_THAT(sentence_of([] { nccl()->join(1, {}, 0, look); }), HasSubstr("CUDA"));
  EXPECT_THAT(sentence_of([] { adopt_nccl_comm(nullptr); }), HasSubstr("null was given"));
}
#endif

}  // namespace
}  // namespace stretto
