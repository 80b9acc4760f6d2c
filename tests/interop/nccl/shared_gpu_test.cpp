// Ranks that share a GPU: NCCL refuses them, and the door answers every call.
#include <gmock/gmock.h>

#include <array>
#include <random>
#include <thread>

#include "interop/nccl/calls.hpp"
#include "interop/nccl/communicators.hpp"

namespace stretto::nccl_door {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

// Ranks as threads on one GPU, with their communicator and a stream of theirs. A body that has ended the communicator sets
// it to null.
void on_one_gpu(int size, const std::function<void(ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream)>& body) {
  BehindTheDoor behind(size, 1);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  behind.run([&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, size, id, rank));
    {
      const StreamInUse stream(behind.gpu_of(rank));
      body(comm, rank, behind.gpu_of(rank), stream);
    }
    if (comm != nullptr) {
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
  });
  EXPECT_EQ(behind.calls("AllReduce") + behind.calls("CommInitRank"), 0) << "NCCL was asked";
}

TEST(SharedGpu, EveryCollectiveGivesWhatNcclWould) {
  for (int size = 2; size <= 4; ++size) {
    on_one_gpu(size, [&](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
      for (const Collective collective : collectives) {
        for (const std::size_t count : {0U, 1U, 300U}) {
          expect_right({collective, size, count, size - 1, static_cast<int>(count)}, rank, comm, gpu, stream);
        }
      }
    });
  }
}

TEST(SharedGpu, TheHandleSaysWhatItIs) {
  on_one_gpu(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream) {
    int value = -1;
    EXPECT_NCCL(ncclCommCount(comm, &value));
    EXPECT_EQ(value, 3);
    EXPECT_NCCL(ncclCommUserRank(comm, &value));
    EXPECT_EQ(value, rank);
    EXPECT_NCCL(ncclCommCuDevice(comm, &value));
    EXPECT_EQ(value, gpu.info().index);
    ncclResult_t error = ncclInternalError;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    EXPECT_EQ(error, ncclSuccess);
    const ncclTeam world = ncclTeamWorld(comm);
    EXPECT_EQ((std::array{world.nRanks, world.rank, world.stride}), (std::array{3, rank, 1}));
    EXPECT_EQ(ncclTeamLsa(comm).nRanks, 1);
    EXPECT_EQ(ncclTeamRankToWorld(comm, ncclTeamRail(comm), 2), 2);
    EXPECT_NE(*reinterpret_cast<const std::uint64_t*>(comm), 0x0280028002800280U) << "NCCL would take it for its own";
  });
}

TEST(SharedGpu, AFactorOfEachRank) {
  on_one_gpu(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    ncclRedOp_t op{};
    float factor = static_cast<float>(rank + 2);
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
    EXPECT_GE(op, ncclNumOps);
    factor = 1000;  // was read
    expect_right({Collective::all_reduce, 3, 100, 0, 1, {2, 3, 4}}, rank, comm, gpu, stream, op);
    const OnGpu<float> there(gpu, stream, 1, 2.0F);
    EXPECT_EQ(ncclRedOpCreatePreMulSum(&op, there.at(), ncclFloat, ncclScalarDevice, comm), ncclInvalidArgument);
    EXPECT_NCCL(ncclRedOpDestroy(op, comm));
    EXPECT_EQ(ncclRedOpDestroy(op, comm), ncclInvalidArgument) << "twice";
  });
}

TEST(SharedGpu, MessagesOfAGroupGoTogether) {
  on_one_gpu(4, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    std::vector<std::unique_ptr<OnGpu<int>>> sent, received;
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(ncclGroupStart());
    for (int peer = 0; peer < 4; ++peer) {
      sent.push_back(std::make_unique<OnGpu<int>>(gpu, stream, 50, 100 * rank + peer));
      received.push_back(std::make_unique<OnGpu<int>>(gpu, stream, 50, -1));
      ASSERT_NCCL(ncclSend(sent.back()->at(), 50, ncclInt32, peer, comm, cuda_stream(stream)));
      ASSERT_NCCL(ncclRecv(received.back()->at(), 50, ncclInt32, peer, comm, cuda_stream(stream)));
    }
    ASSERT_NCCL(ncclGroupEnd());
    ASSERT_NCCL(ncclGroupEnd());
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_THAT(received[static_cast<std::size_t>(peer)]->values(), Each(100 * peer + rank));
    }
  });
}

TEST(SharedGpu, EveryTypeTravels) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    static constexpr std::size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    for (int type = 0; type < ncclNumTypes; ++type) {
      const std::size_t width = widths[type];
      const OnGpu<std::uint8_t> input(gpu, stream, 10 * width, static_cast<std::uint8_t>(16 * (rank + 1) + type));
      const OnGpu<std::uint8_t> output(gpu, stream, 20 * width + 1, std::uint8_t{0});
      ASSERT_NCCL(ncclAllGather(input.at(), output.at(), 10, static_cast<ncclDataType_t>(type), comm, cuda_stream(stream)));
      const std::vector<std::uint8_t> got = output.values();
      EXPECT_EQ(got[0], 16 + type);
      EXPECT_EQ(got[20 * width - 1], 32 + type);
      EXPECT_EQ(got[20 * width], 0) << "wrote behind the end";
    }
  });
}

TEST(SharedGpu, WhatOnlyNcclHasIsRefusedWithASentence) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    void* handle = nullptr;
    EXPECT_EQ(ncclCommRegister(comm, memory.at(), 256, &handle), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), AllOf(HasSubstr("ncclCommRegister"), HasSubstr("share a GPU")));
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclCommWindowRegister(comm, memory.at(), 256, &window, 0), ncclInvalidUsage);
    EXPECT_EQ(ncclCommRevoke(comm, 0), ncclInvalidUsage);
    EXPECT_EQ(ncclDevCommCreate(comm, nullptr, nullptr), ncclInvalidUsage);
    float here = 0;
    EXPECT_EQ(ncclAllReduce(&here, memory.at(), 1, ncclFloat, ncclSum, comm, cuda_stream(stream)), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("on rank {}, which is no memory of a GPU", rank)));
    EXPECT_EQ(ncclAllReduce(memory.at(), nullptr, 1, ncclFloat, ncclSum, comm, cuda_stream(stream)), ncclInvalidArgument);
    expect_right({Collective::all_reduce, 2, 10}, rank, comm, gpu, stream);
  });
}

TEST(SharedGpu, AGraphIsRefused) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    gpu.begin_capture(stream);
    EXPECT_EQ(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("graph"));
    gpu.destroy(gpu.end_capture(stream));
    expect_right({Collective::all_reduce, 2, 10}, rank, comm, gpu, stream);
  });
}

TEST(SharedGpu, AGroupInWhichACallFailedBeginsNothing) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    float here = 0;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)));
    EXPECT_EQ(ncclAllReduce(&here, &here, 1, ncclFloat, ncclSum, comm, cuda_stream(stream)), ncclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("no memory of a GPU"));
    EXPECT_THAT(memory.values(), Each(1.0F));
    expect_right({Collective::all_reduce, 2, 10}, rank, comm, gpu, stream);
  });
}

TEST(SharedGpu, SplitsAreStrettosToo) {
  on_one_gpu(4, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    ncclComm_t pair = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, rank % 2, -rank, &pair, nullptr));
    int place = -1;
    ASSERT_NCCL(ncclCommUserRank(pair, &place));
    EXPECT_EQ(place, rank < 2 ? 1 : 0) << "ordered by key";
    expect_right({Collective::all_gather, 2, 40}, place, pair, gpu, stream);
    ncclComm_t none = comm;
    ASSERT_NCCL(ncclCommSplit(comm, rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
    EXPECT_EQ(none == nullptr, rank != 0);
    if (none != nullptr) {
      expect_right({Collective::all_reduce, 1, 40}, 0, none, gpu, stream);
      EXPECT_NCCL(ncclCommDestroy(none));
    }
    EXPECT_NCCL(ncclCommDestroy(pair));
    expect_right({Collective::all_reduce, 4, 40}, rank, comm, gpu, stream);
  });
}

TEST(SharedGpu, ShrinksToThoseThatRemain) {
  on_one_gpu(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    int left_out = 1;
    ncclComm_t smaller = nullptr;
    if (rank == 1) return;
    EXPECT_EQ(ncclCommShrink(comm, &left_out, 1, &smaller, nullptr, NCCL_SHRINK_ABORT), ncclInvalidUsage);
    int self = rank;
    EXPECT_EQ(ncclCommShrink(comm, &self, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT), ncclInvalidArgument);
    ASSERT_NCCL(ncclCommShrink(comm, &left_out, 1, &smaller, nullptr, NCCL_SHRINK_DEFAULT));
    expect_right({Collective::all_gather, 2, 40}, rank / 2, smaller, gpu, stream);
    EXPECT_NCCL(ncclCommDestroy(smaller));
  });
}

// As nccl-tests does it: one thread makes all ranks, and destroys them one after the other; threads use them.
TEST(SharedGpu, OneThreadMakesAndEndsAllRanks) {
  BehindTheDoor behind(3, 1);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclComm_t comms[3] = {};
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < 3; ++rank) ASSERT_NCCL(ncclCommInitRank(&comms[rank], 3, id, rank));
  ASSERT_NCCL(ncclGroupEnd());
  behind.run([&](int rank) {
    const StreamInUse stream(behind.gpu_of(rank));
    for (int i = 0; i < 5; ++i) {
      expect_right({Collective::all_reduce, 3, 100, 0, i}, rank, comms[rank], behind.gpu_of(rank), stream);
    }
  });
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  EXPECT_EQ(ncclCommDestroy(comms[0]), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("destroyed"));
}

// And with one thread for several ranks: their calls stand in a group.
TEST(SharedGpu, OneThreadCallsForAllRanksInAGroup) {
  BehindTheDoor behind(1, 1);
  behind.run([&](int) {
    HostGpu& gpu = behind.gpu_of(0);
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) ASSERT_NCCL(ncclCommInitRank(&comms[rank], 2, id, rank));
    ASSERT_NCCL(ncclGroupEnd());
    ncclComm_t parts[2] = {};
    ASSERT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) ASSERT_NCCL(ncclCommSplit(comms[rank], 0, -rank, &parts[rank], nullptr));
    ASSERT_NCCL(ncclGroupEnd());
    {
      const StreamInUse stream0(gpu), stream1(gpu);
      const GpuStream streams[] = {stream0, stream1};
      for (int i = 0; i < 3; ++i) {
        std::vector<std::unique_ptr<Started>> started;
        ASSERT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < 2; ++rank) {
          started.push_back(std::make_unique<Started>(Problem{Collective::all_gather, 2, 60, 0, i},
                                                      i % 2 == 0 ? rank : 1 - rank, i % 2 == 0 ? comms[rank] : parts[rank],
                                                      gpu, streams[rank]));
          ASSERT_EQ(started.back()->result, ncclSuccess);
        }
        ASSERT_NCCL(ncclGroupEnd());
        for (const auto& one : started) EXPECT_EQ(one->wrong(), 0U);
      }
    }
    for (ncclComm_t comm : {parts[0], parts[1], comms[0], comms[1]}) EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(SharedGpu, AnAbortReachesTheOthers) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    if (rank == 0) {
      EXPECT_NCCL(ncclCommAbort(comm));
      EXPECT_EQ(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)),
                ncclInvalidArgument);
    } else {
      ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream));
      ncclResult_t error = ncclSuccess;
      for (int i = 0; i < 1000 && error == ncclSuccess; ++i) {
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_EQ(error, ncclRemoteError);
      // Who hears of it first, the operation or the communicator, says it in its own words.
      EXPECT_THAT(ncclGetLastError(comm), testing::AnyOf(HasSubstr("gave up"), HasSubstr("has aborted")));
      EXPECT_NCCL(ncclCommAbort(comm));
    }
    comm = nullptr;
  });
}

TEST(SharedGpu, AFinalizedCommunicatorTakesNothingMore) {
  on_one_gpu(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    expect_right({Collective::all_reduce, 2, 10}, rank, comm, gpu, stream);
    ASSERT_NCCL(ncclCommFinalize(comm));
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    EXPECT_EQ(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)), ncclInvalidUsage);
  });
}

TEST(SharedGpu, RandomProgramsGiveWhatNcclWould) {
  on_one_gpu(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    std::mt19937 chance(7);  // the same on all ranks
    const auto below = [&](unsigned end) { return static_cast<int>(chance() % end); };
    const StreamInUse second(gpu);
    for (int step = 0; step < 60; ++step) {
      const int calls = 1 + below(3);
      const bool grouped = calls > 1;
      std::vector<std::unique_ptr<Started>> started;
      if (grouped) {
        ASSERT_NCCL(ncclGroupStart());
      }
      for (int i = 0; i < calls; ++i) {
        const Problem problem{collectives[below(8)], 3, static_cast<std::size_t>(below(400)), below(3), step + i};
        const GpuStream in = below(2) == 0 ? stream : static_cast<GpuStream>(second);
        started.push_back(std::make_unique<Started>(problem, rank, comm, gpu, in));
        ASSERT_EQ(started.back()->result, ncclSuccess) << ncclGetLastError(comm);
      }
      if (grouped) {
        ASSERT_NCCL(ncclGroupEnd());
      }
      for (const auto& one : started) ASSERT_EQ(one->wrong(), 0U) << "step " << step;
    }
  });
}

}  // namespace
}  // namespace stretto::nccl_door
