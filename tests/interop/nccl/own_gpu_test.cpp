// Ranks with a GPU each: the handle is NCCL's, and so are the calls, but for those that a setting gives to Stretto.
#include <gmock/gmock.h>

#include <atomic>
#include <random>

#include "interop/nccl/calls.hpp"
#include "interop/nccl/communicators.hpp"
#include "support/variables.hpp"

namespace stretto::nccl_door {
namespace {

using testing::HasSubstr;

class OwnGpu : public testing::Test {
 protected:
  // A body that has ended the communicator sets it to null.
  void run(int size, const std::function<void(ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream)>& body,
           const HostGpuOptions& options = {.longest_delay_us = 20}) {
    behind = std::make_unique<BehindTheDoor>(size, size, options);
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    behind->run([&](int rank) {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, size, id, rank));
      const StreamInUse stream(behind->gpu_of(rank));
      body(comm, rank, behind->gpu_of(rank), stream);
      if (comm != nullptr) {
        EXPECT_NCCL(ncclCommDestroy(comm));
      }
    });
    EXPECT_EQ(behind->communicators(), 0) << "NCCL's communicators are left";
  }
  int calls(const char* function) const { return behind->calls(function); }

  std::unique_ptr<BehindTheDoor> behind;
};

TEST_F(OwnGpu, TheHandleAndEveryCallAreNccls) {
  run(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    EXPECT_EQ(find(comm), nullptr) << "the door has no part in it";
    for (const Collective collective : collectives) expect_right({collective, 3, 100, 1}, rank, comm, gpu, stream);
    int size = 0;
    EXPECT_NCCL(ncclCommCount(comm, &size));
    EXPECT_EQ(size, 3);
    void* registered = nullptr;
    EXPECT_NCCL(ncclCommRegister(comm, &size, 4, &registered));
    EXPECT_EQ(registered, &size);
  });
  EXPECT_EQ(calls("GetUniqueId"), 1);
  EXPECT_EQ(calls("CommInitRank"), 3);
  for (const char* function : {"AllReduce", "ReduceScatter", "AllGather", "AlltoAll", "Broadcast", "Reduce", "Gather",
                               "Scatter", "CommCount", "CommDestroy"}) {
    EXPECT_EQ(calls(function), 3) << function;
  }
}

TEST_F(OwnGpu, AConfigurationGoesToNccl) {
  behind = std::make_unique<BehindTheDoor>(2, 2);
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  behind->run([&](int rank) {
    ncclComm_t comms[2] = {};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "one";
    ASSERT_NCCL(ncclCommInitRankConfig(&comms[0], 2, ids[0], rank, &config));
    ASSERT_NCCL(ncclCommInitRankScalable(&comms[1], 2, rank, 1, &ids[1], &config));
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(calls("CommInitRankConfig"), 4);
}

TEST_F(OwnGpu, AnIdThatWasMadeWithoutTheDoorIsNccls) {
  behind = std::make_unique<BehindTheDoor>(2, 2);
  ncclUniqueId id;
  ASSERT_NCCL(real_nccl().GetUniqueId(&id));
  behind->run([&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    const StreamInUse stream(behind->gpu_of(rank));
    expect_right({Collective::all_reduce, 2, 100}, rank, comm, behind->gpu_of(rank), stream);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(OwnGpu, ALoneRankIsNccls) {
  run(1, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    expect_right({Collective::all_reduce, 1, 100}, rank, comm, gpu, stream);
  });
  EXPECT_EQ(calls("AllReduce"), 1);
}

TEST_F(OwnGpu, AGraphOfNcclsCalls) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_gather");
  run(2, [](ncclComm_t& comm, int, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    gpu.begin_capture(stream);
    EXPECT_NCCL(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)));
    EXPECT_EQ(ncclAllGather(memory.at(), memory.at(), 32, ncclFloat, comm, cuda_stream(stream)), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("STRETTO_NCCL_SERVE=none"));
    const GpuGraph graph = gpu.end_capture(stream);
    for (int i = 0; i < 3; ++i) gpu.launch(graph, stream);
    EXPECT_THAT(memory.values(), testing::Each(8.0F));
    gpu.destroy(graph);
  });
}

// ---- what Stretto serves

TEST_F(OwnGpu, WhatIsListedIsServedAndTheRestIsNccls) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce,scatter");
  run(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    ASSERT_NE(find(comm), nullptr);
    EXPECT_FALSE(find(comm)->shared);
    for (const Collective collective : collectives) expect_right({collective, 3, 100, 1}, rank, comm, gpu, stream);
  });
  EXPECT_EQ(calls("AllReduce"), 0);
  EXPECT_EQ(calls("Scatter"), 0);
  EXPECT_EQ(calls("AllGather"), 3);
  EXPECT_EQ(calls("Reduce"), 3);
}

TEST_F(OwnGpu, AllIsServedWhereAllIsListed) {
  const Variable serve("STRETTO_NCCL_SERVE", "all");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    for (const Collective collective : collectives) expect_right({collective, 2, 77, 1}, rank, comm, gpu, stream);
  });
  for (const char* function : {"AllReduce", "ReduceScatter", "AllGather", "AlltoAll", "Broadcast", "Reduce", "Gather"}) {
    EXPECT_EQ(calls(function), 0) << function;
  }
}

TEST_F(OwnGpu, ReproducibleSumsAreStrettos) {
  const Variable reproducible("STRETTO_DETERMINISTIC", "1");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    for (const Collective collective : collectives) expect_right({collective, 2, 77, 1}, rank, comm, gpu, stream);
  });
  EXPECT_EQ(calls("AllReduce") + calls("ReduceScatter") + calls("Reduce"), 0);
  EXPECT_EQ(calls("AllGather"), 2);
}

TEST_F(OwnGpu, ButNotWhereEverythingIsLeftToNccl) {
  const Variable reproducible("STRETTO_DETERMINISTIC", "1");
  const Variable serve("STRETTO_NCCL_SERVE", "none");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    expect_right({Collective::all_reduce, 2, 77}, rank, comm, gpu, stream);
  });
  EXPECT_EQ(calls("AllReduce"), 2);
}

TEST_F(OwnGpu, AWrongListIsRefusedWhereTheCommunicatorIsMade) {
  for (const auto& [list, said] : {std::pair{"all_reduce,send", "send, which stays NCCL's"}, {"allreduce", "allreduce"}}) {
    const Variable serve("STRETTO_NCCL_SERVE", list);
    behind.reset();
    behind = std::make_unique<BehindTheDoor>(2, 2);
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    behind->run([&, sentence = said](int rank) {
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(sentence));
      EXPECT_EQ(comm, nullptr);
    });
  }
}

// What one library puts into one stream and the other into another happens in the order of the calls.
class BothLibraries : public OwnGpu {
 protected:
  // Rounds that came out wrong.
  int wrong_rounds(const HostGpuOptions& options) {
    const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
    std::atomic<int> wrong = 0;
    const auto body = [&](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream for_stretto) {
      const StreamInUse for_nccl(gpu);
      for (int round = 0; round < 20; ++round) {
        const bool grouped = round % 2 == 1;
        const OnGpu<float> a(gpu, for_stretto, 100, static_cast<float>(rank + 1));
        const OnGpu<float> b(gpu, for_nccl, 200, 0.0F);
        for (int i = 0; i < 5; ++i) {
          if (grouped) {
            ASSERT_NCCL(ncclGroupStart());
          }
          ASSERT_NCCL(ncclAllReduce(a.at(), a.at(), 100, ncclFloat, ncclMax, comm, cuda_stream(for_stretto)));
          if (grouped) {
            ASSERT_NCCL(ncclGroupEnd());
          }
          ASSERT_NCCL(ncclAllGather(a.at(), b.at(), 100, ncclFloat, comm, cuda_stream(for_nccl)));
          // Into what the first one reads, again.
          ASSERT_NCCL(ncclReduceScatter(b.at(), a.at(), 100, ncclFloat, ncclSum, comm, cuda_stream(for_nccl)));
        }
        const std::vector<float> got = b.values();
        a.values();                               // the other stream has ended as well
        wrong += got[0] != 32 || got[199] != 32;  // 2, doubled four times
      }
    };
    run(2, body, options);
    return wrong;
  }
};

TEST_F(BothLibraries, WaitForEachOther) { EXPECT_EQ(wrong_rounds({.longest_delay_us = 300}), 0); }
#if !defined(__SANITIZE_THREAD__)  // the control, streams that do not wait, is the race that it would find
TEST_F(BothLibraries, AndItShowsWhereTheyDoNot) {
  EXPECT_GT(wrong_rounds({.longest_delay_us = 300, .ignores_waits = true}), 0);
}
#endif

TEST_F(OwnGpu, FactorsAreKnownToBoth) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    ncclRedOp_t op{};
    float factor = static_cast<float>(rank + 2);
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
    EXPECT_EQ(op, 77) << "NCCL's number";
    expect_right({Collective::all_reduce, 2, 100, 0, 1, {2, 3}}, rank, comm, gpu, stream, op);
    EXPECT_NCCL(ncclRedOpDestroy(op, comm));
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    ASSERT_NCCL(ncclRedOpCreatePreMulSum(&op, memory.at(), ncclFloat, ncclScalarDevice, comm));
    EXPECT_EQ(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, op, comm, cuda_stream(stream)), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("only strettoScalarHostImmediate is served"));
    EXPECT_NCCL(ncclRedOpDestroy(op, comm));
  });
  EXPECT_EQ(calls("RedOpCreatePreMulSum"), 4);
  EXPECT_EQ(calls("RedOpDestroy"), 4);
}

TEST_F(OwnGpu, AThreadsGpuStaysWhatItIs) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& /*gpu*/, GpuStream /*stream*/) {
    cuda().use_device(5);  // as a program that has gone on to another
    ncclComm_t part = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &part, nullptr));
    EXPECT_EQ(cuda().device(), 5);
    EXPECT_NCCL(ncclCommDestroy(part));
  });
}

TEST_F(OwnGpu, BothLibrariesSplit) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
  run(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    for (const bool grouped : {false, true}) {
      ncclComm_t part = nullptr;
      if (grouped) {
        ASSERT_NCCL(ncclGroupStart());
      }
      ASSERT_NCCL(ncclCommSplit(comm, rank < 2 ? 0 : NCCL_SPLIT_NOCOLOR, rank, &part, nullptr));
      if (grouped) {
        ASSERT_NCCL(ncclGroupEnd());
      }
      EXPECT_EQ(part == nullptr, rank == 2);
      if (part == nullptr) continue;
      expect_right({Collective::all_reduce, 2, 50}, rank, part, gpu, stream);
      expect_right({Collective::all_gather, 2, 50}, rank, part, gpu, stream);
      EXPECT_NCCL(ncclCommDestroy(part));
    }
  });
  EXPECT_EQ(calls("AllReduce"), 0);
  EXPECT_EQ(calls("AllGather"), 4);
}

TEST_F(OwnGpu, BothLibrariesAbort) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
  run(2, [](ncclComm_t& comm, int, HostGpu&, GpuStream) {
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_EQ(find(comm), nullptr);
    comm = nullptr;
  });
  EXPECT_EQ(calls("CommAbort"), 2);
}

TEST_F(OwnGpu, RandomProgramsOfBothLibraries) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce,broadcast,all_to_all");
  run(3, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    std::mt19937 chance(11);  // the same on all ranks
    const auto below = [&](unsigned end) { return static_cast<int>(chance() % end); };
    for (int step = 0; step < 60; ++step) {
      const int calls = 1 + below(3);
      std::vector<std::unique_ptr<Started>> started;
      if (calls > 1) {
        ASSERT_NCCL(ncclGroupStart());
      }
      for (int i = 0; i < calls; ++i) {
        const Problem problem{collectives[below(8)], 3, static_cast<std::size_t>(below(400)), below(3), step + i};
        started.push_back(std::make_unique<Started>(problem, rank, comm, gpu, stream));
        ASSERT_EQ(started.back()->result, ncclSuccess) << ncclGetLastError(comm);
      }
      if (calls > 1) {
        ASSERT_NCCL(ncclGroupEnd());
      }
      for (const auto& one : started) ASSERT_EQ(one->wrong(), 0U) << "step " << step;
    }
  });
}

// Ranks 0 and 2 share a GPU, and so do 1 and 3; 0 and 1 have one each, and so have 2 and 3.
TEST_F(OwnGpu, AGroupOfSharedAndOwnGpus) {
  behind = std::make_unique<BehindTheDoor>(4, 2);
  ncclUniqueId shared_ids[2], own_ids[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_NCCL(ncclGetUniqueId(&shared_ids[i]));
    ASSERT_NCCL(ncclGetUniqueId(&own_ids[i]));
  }
  behind->run([&](int rank) {
    ncclComm_t shared = nullptr, own = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&shared, 2, shared_ids[rank % 2], rank / 2));
    ASSERT_NCCL(ncclCommInitRank(&own, 2, own_ids[rank / 2], rank % 2));
    HostGpu& gpu = behind->gpu_of(rank);
    const StreamInUse stream(gpu);
    for (int i = 0; i < 10; ++i) {
      std::vector<std::unique_ptr<Started>> started;
      ASSERT_NCCL(ncclGroupStart());
      for (int call = 0; call < 4; ++call) {
        const bool own_first = rank == 0;  // in a group communicators may be called in any order
        if ((call % 2 == 0) == own_first) {
          started.push_back(std::make_unique<Started>(Problem{Collective::all_reduce, 2, 90, 0, i + call / 2}, rank % 2, own,
                                                      gpu, stream));
        } else {
          started.push_back(std::make_unique<Started>(Problem{Collective::all_gather, 2, 90, 0, i + call / 2}, rank / 2,
                                                      shared, gpu, stream));
        }
        ASSERT_EQ(started.back()->result, ncclSuccess) << ncclGetLastError(nullptr);
      }
      ASSERT_NCCL(ncclGroupEnd());
      for (const auto& one : started) EXPECT_EQ(one->wrong(), 0U);
    }
    EXPECT_NCCL(ncclCommDestroy(own));
    EXPECT_NCCL(ncclCommDestroy(shared));
  });
  EXPECT_EQ(calls("AllReduce"), 80);
  EXPECT_EQ(calls("AllGather"), 0);
}

TEST_F(OwnGpu, ASimulatedGroupStartsNothing) {
  const Variable serve("STRETTO_NCCL_SERVE", "all_reduce");
  run(2, [](ncclComm_t& comm, int rank, HostGpu& gpu, GpuStream stream) {
    const OnGpu<float> memory(gpu, stream, 64, 1.0F);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclBcast(memory.at(), 64, ncclFloat, 0, comm, cuda_stream(stream)));
    EXPECT_NCCL(ncclGroupSimulateEnd(&info));
    ASSERT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclAllReduce(memory.at(), memory.at(), 64, ncclFloat, ncclSum, comm, cuda_stream(stream)));
    EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
    EXPECT_THAT(memory.values(), testing::Each(1.0F));
    expect_right({Collective::all_reduce, 2, 10}, rank, comm, gpu, stream);
  });
}

}  // namespace
}  // namespace stretto::nccl_door
