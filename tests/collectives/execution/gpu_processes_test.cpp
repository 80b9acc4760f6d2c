// Ranks that are processes and share a GPU, which NCCL refuses: their messages go through GPU memory that both ends have
// open, or through the host. The GPU is a stand-in or this machine's. This program must not use CUDA before it forks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <new>
#include <optional>
#include <thread>
#include <tuple>

#include "collectives/gpu_buffers.hpp"
#include "core/log.hpp"
#include "stand_in/job_on_gpus.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/bootstrap/processes/fork_ranks.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;
using testing::Not;

// Runs the body on processes that share a GPU and returns their exit status. The GPU is this machine's, or each process has
// a stand-in with the same identifier.
int on_processes(int ranks, const HostGpuOptions& options, const std::function<void(const Communicator& world)>& body) {
  std::optional<HostGpu> stand_in;
  if (!on_real_gpu()) stand_in.emplace(options);
  return launch(ranks, [&](const Communicator& world) {
    std::optional<GpuInUse> in_use;
    if (stand_in) in_use.emplace(*stand_in);
    body(world);
    if (stand_in) {
      EXPECT_THAT(stand_in->violations(), testing::IsEmpty());
      EXPECT_EQ(stand_in->memories_open(), 0U);  // all communicators have been destroyed
    }
    if (testing::Test::HasFailure()) throw Error(ErrorCode::internal, "It failed, see above.");
    world.barrier(Stream::inline_()).wait();
  });
}

void expect_every_plan_right(const Communicator& world, const std::vector<Collective>& collectives) {
  const OnDevice on_gpu(Device::cuda);
  const Communicator all = world.duplicate("all");
  const Stream stream("communication");
  for (const Collective collective : collectives) {
    for (const Method& method : oracle::methods_of(collective, false, Device::cuda)) {
      for (const std::int64_t count : {0, 7, 150000}) {
        oracle::expect_right<GpuBuffers>(all, {collective, all.size(), count}, method, stream);
      }
    }
  }
}

class GpusOfProcesses : public testing::TestWithParam<Route> {
 protected:
  static constexpr int says_why = 77;
  void SetUp() override {
    if (!on_real_gpu()) return;
    // Asks in another process, because CUDA does not survive a fork.
    const int without_gpu = fork_ranks(1, [](int) {
      std::string obstacle = cuda_obstacle();
      if (obstacle.empty() && GetParam() == Route::ipc) obstacle = obstacle_to_ipc();
      if (!obstacle.empty()) std::fprintf(stderr, "%s\n", obstacle.c_str());
      return obstacle.empty() ? 0 : says_why;
    });
    ASSERT_TRUE(without_gpu == 0 || without_gpu == says_why)
        << "a process that asked for the GPU ended with " << without_gpu;
    if (without_gpu == says_why) GTEST_SKIP() << "There is no such GPU, see above.";
  }
};
INSTANTIATE_TEST_SUITE_P(All, GpusOfProcesses, testing::Values(Route::ipc, Route::staged),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(GpusOfProcesses, DoEveryCollectiveByEveryPlan) {
  const Variable transport("STRETTO_GPU_TRANSPORT", name(GetParam()));
  std::vector<Collective> collectives;
  for (int i = 0; i < static_cast<int>(Collective::barrier); ++i) collectives.push_back(static_cast<Collective>(i));
  EXPECT_EQ(on_processes(3, {.longest_delay_us = 20},
                         [&](const Communicator& world) { expect_every_plan_right(world, collectives); }),
            0);
}

// Repeated messages in both directions, larger than all blocks together: blocks are refilled while others are still full.
TEST_P(GpusOfProcesses, SendMoreThanBlocksHold) {
  const Variable transport("STRETTO_GPU_TRANSPORT", name(GetParam()));
  EXPECT_EQ(on_processes(2, {},
                         [&](const Communicator& world) {
                           const OnDevice on_gpu(Device::cuda);
                           const Communicator pair = world.duplicate("pair");
                           const std::int64_t count = std::int64_t{5} << 20;
                           const Tensor mine({count}, DType::f32), theirs = Tensor::zeros({count}, DType::f32);
                           std::vector<float> values(static_cast<std::size_t>(count));
                           const Stream stream("communication");
                           for (int round = 0; round < 3; ++round) {
                             const auto value = [&](std::int64_t i, int rank) {
                               return static_cast<float>((i + 31 * rank + 7 * round) % 16411);
                             };
                             for (std::int64_t i = 0; i < count; ++i)
                               values[static_cast<std::size_t>(i)] = value(i, world.rank());
                             mine.copy_from_host(values.data());
                             OperationGroup group;
                             std::ignore = pair.send(mine.raw(), count, DType::f32, 1 - world.rank(), stream);
                             std::ignore = pair.recv(theirs.raw(), count, DType::f32, 1 - world.rank(), stream);
                             computation().wait(group.end());
                             theirs.copy_to_host(values.data());
                             std::int64_t wrong = 0;
                             for (std::int64_t i = 0; i < count; ++i)
                               wrong += values[static_cast<std::size_t>(i)] != value(i, 1 - world.rank());
                             EXPECT_EQ(wrong, 0);
                           }
                         }),
            0);
}

// Two processes with two ranks each: the threads of a process use each other's blocks directly, because CUDA opens no handle
// of the same process.
TEST_P(GpusOfProcesses, MayHaveSeveralRanksEach) {
  const Variable transport("STRETTO_GPU_TRANSPORT", name(GetParam()));
  const MeetingPoint point = open_meeting("127.0.0.1");
  EXPECT_EQ(on_processes(2, {.longest_delay_us = 20},
                         [&](const Communicator& processes) {
                           std::vector<std::thread> threads;
                           for (const int rank : {2 * processes.rank(), 2 * processes.rank() + 1}) {
                             threads.emplace_back([&, rank] {
                               MeetingPoint own = point;
                               if (rank != 0) own.listener = -1;
                               const auto body = [](const Communicator& four) {
                                 expect_every_plan_right(four, {Collective::all_reduce, Collective::all_to_all});
                               };
                               EXPECT_EQ(run(connect(rank, 4, own), body), 0);
                             });
                           }
                           for (std::thread& thread : threads) thread.join();
                         }),
            0);
}

// The next communicator reuses the shared memory of the previous one.
TEST_P(GpusOfProcesses, MakeOneCommunicatorAfterAnother) {
  const Variable transport("STRETTO_GPU_TRANSPORT", name(GetParam()));
  EXPECT_EQ(on_processes(2, {},
                         [&](const Communicator& world) {
                           const OnDevice on_gpu(Device::cuda);
                           const Tensor x({1000}, DType::f32);
                           std::size_t lent = 0;
                           for (int round = 0; round < 4; ++round) {
                             const Communicator pair = world.duplicate("pair");
                             x.copy_from_host(std::vector<float>(1000, 1).data());
                             pair.all_reduce(x, ReduceOp::sum, computation()).wait();
                             EXPECT_EQ(x.at(999), 2);
                             if (on_real_gpu()) continue;
                             const std::size_t now = dynamic_cast<HostGpu&>(gpu()).shared_bytes_in_use();
                             EXPECT_EQ(now > 0, GetParam() == Route::ipc);
                             EXPECT_TRUE(round == 0 || now == lent) << now << " " << lent;
                             lent = now;
                           }
                         }),
            0);
}

// The survivor closes the dead process's memory and does not wait for it.
TEST_P(GpusOfProcesses, HearOfOneThatIsKilled) {
  const Variable transport("STRETTO_GPU_TRANSPORT", name(GetParam()));
  void* const shared = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& right = *new (shared) std::atomic<int>(0);
  EXPECT_NE(on_processes(2, {},
                         [&](const Communicator& world) {
                           const OnDevice on_gpu(Device::cuda);
                           const Tensor x = Tensor::zeros({1000000}, DType::f32);
                           const std::string sentence = sentence_of([&] {
                             const Communicator pair = world.duplicate("pair");
                             for (int round = 0;; ++round) {
                               if (round == 3 && world.rank() == 1) std::raise(SIGKILL);
                               pair.all_reduce(x, ReduceOp::sum, computation()).wait();
                             }
                           });
                           EXPECT_THAT(sentence, HasSubstr("ank 1"));
                           if (!on_real_gpu()) {
                             EXPECT_EQ(dynamic_cast<HostGpu&>(gpu()).memories_open(), 0U);
                           }
                           right = !testing::Test::HasFailure();
                         }),
            0);
  EXPECT_EQ(right, 1);
  munmap(shared, sizeof(std::atomic<int>));
}

// ---- The chosen route, over stand-ins, which tell the number of open memories

class GpusOfProcessesTake : public testing::Test {
 protected:
  void SetUp() override {
    if (on_real_gpu()) GTEST_SKIP() << "only a stand-in tells what is open";
  }
  // Expects each process to have opened the other's memory or not, and its call to fail with `sentence`; returns the log.
  static std::string expect(const HostGpuOptions& options, bool opened, const std::string& sentence) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(on_processes(2, options,
                           [&](const Communicator& world) {
                             log().set_level(spdlog::level::info);
                             const OnDevice on_gpu(Device::cuda);
                             {
                               const Communicator pair = world.duplicate("pair");
                               const Tensor x = Tensor::zeros({10}, DType::f32);
                               EXPECT_EQ(sentence_of([&] { pair.all_reduce(x, ReduceOp::sum, computation()).wait(); }),
                                         sentence);
                               EXPECT_EQ(dynamic_cast<HostGpu&>(gpu()).memories_open(), opened ? 1U : 0U);
                             }
                           }),
              0);
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(GpusOfProcessesTake, TheirMemoryWhereItCanBeOpened) { EXPECT_THAT(expect({}, true, ""), Not(HasSubstr("IPC"))); }

TEST_F(GpusOfProcessesTake, TheHostsElseAndSayWhy) {
  EXPECT_THAT(expect({.cannot_open = true}, false, ""),
              HasSubstr("GPUs of ranks 0, 1 reach each other by way of the host; CUDA IPC cannot be: rank 0 does not reach "
                        "the GPU of rank 1: This GPU opens no other process's memory."));
  const Variable transport("STRETTO_GPU_TRANSPORT", "staged");
  EXPECT_THAT(expect({}, false, ""), Not(HasSubstr("IPC")));
}

TEST_F(GpusOfProcessesTake, NothingElseThanWhatIsAskedFor) {
  const Variable transport("STRETTO_GPU_TRANSPORT", "ipc");
  expect({}, true, "");
  expect({.cannot_open = true}, false,
         "STRETTO_GPU_TRANSPORT=ipc cannot be: rank 0 does not reach the GPU of rank 1: This GPU opens no other process's "
         "memory.");
}

}  // namespace
}  // namespace stretto
