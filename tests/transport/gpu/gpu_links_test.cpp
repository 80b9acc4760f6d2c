// The choice of the links between the GPUs of a communicator's members.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stand_in/host_nccl.hpp"
#include "support/variables.hpp"
#include "transport/linked_ranks.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct NcclInUse {
  explicit NcclInUse(NcclCalls& nccl) { use_nccl(&nccl); }
  ~NcclInUse() { use_nccl(nullptr); }
};

// Ranks over the host's shared memory, rank i with gpus[i], pass a byte round a ring. Returns each rank's route or its error
// message.
std::vector<std::string> routes(const std::vector<HostGpu*>& gpus) {
  const int size = static_cast<int>(gpus.size());
  const Variable patience("STRETTO_TIMEOUT", "20");
  std::vector<std::string> result(gpus.size());
  const auto sentences = on_linked_ranks(size, [&](Links& links, JobControl& job) {
    const int rank = job.rank();
    try {
      const StreamInUse stream(*gpus[rank]);
      const auto gpu_links = make_gpu_links(links, *gpus[rank], [&](const Bytes& mine) { return job.exchange(mine); });
      const OnGpu<std::uint8_t> data(*gpus[rank], stream, 2, static_cast<std::uint8_t>(rank));
      gpu_links->exchange(
          {{true, data.bytes_at(0), 1, (rank + 1) % size}, {false, data.bytes_at(1), 1, (rank + size - 1) % size}}, stream);
      EXPECT_EQ(data.values()[1], (rank + size - 1) % size);
      result[rank] = gpu_links->route();
    } catch (const Error& error) {
      result[rank] = error.what();
    }
  });
  EXPECT_THAT(sentences, Each(""));
  return result;
}

TEST(GpuLinks, AreCopiesWhereThreadsShareAGpu) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const NcclInUse use(nccl);
  for (const std::size_t size : {1, 2, 4}) {
    EXPECT_THAT(routes(std::vector<HostGpu*>(size, &gpu)), Each("peer copies")) << size;
  }
  EXPECT_EQ(nccl.functions_put(), 0U);
}

TEST(GpuLinks, AreNcclsWhereEachRankHasAGpuOfItsOwn) {
  HostGpu one, two, three;
  const std::vector<HostGpu*> gpus{&one, &two, &three};
  HostNccl nccl(gpus);
  const NcclInUse use(nccl);
  EXPECT_THAT(routes(gpus), Each("nccl"));
  EXPECT_THAT(nccl.violations(), testing::IsEmpty());
  const Variable wanted("STRETTO_GPU_TRANSPORT", "nccl");
  EXPECT_THAT(routes(gpus), Each("nccl"));
}

TEST(GpuLinks, SayThatNcclRefusesASharedGpu) {
  HostGpu one, shared;
  HostNccl nccl(shared);
  const NcclInUse use(nccl);
  const Variable wanted("STRETTO_GPU_TRANSPORT", "nccl");
  EXPECT_THAT(routes({&one, &shared, &shared}),
              Each(AllOf(HasSubstr("STRETTO_GPU_TRANSPORT=nccl"), HasSubstr("ranks 1 and 2 share GPU stand-in-"))));
}

TEST(GpuLinks, SayWhichNcclIsTooOld) {
  HostGpu one, other;
  HostNccl nccl({&one, &other});
  nccl.be_version(22709);
  const NcclInUse use(nccl);
  const Variable wanted("STRETTO_GPU_TRANSPORT", "nccl");
  EXPECT_THAT(routes({&one, &other}), Each(HasSubstr("rank 0 has loaded an NCCL that calls itself 22709")));
}

TEST(GpuLinks, AreCopiesWhereTheseAreWanted) {
  HostGpu gpu;
  const Variable wanted("STRETTO_GPU_TRANSPORT", "copies");
  EXPECT_THAT(routes({&gpu, &gpu}), Each("peer copies"));
}

TEST(GpuLinks, AreStagedWhereThatIsWanted) {
  HostGpu one, other;
  const Variable wanted("STRETTO_GPU_TRANSPORT", "staged");
  EXPECT_THAT(routes({&one, &one, &other}), Each("staged"));
}

// Threads of one process reach each other's blocks without a handle.
TEST(GpuLinks, AreCudaIpcsWhereThatIsWanted) {
  HostGpu gpu;
  const Variable wanted("STRETTO_GPU_TRANSPORT", "ipc");
  for (const std::size_t size : {1, 2, 4}) EXPECT_THAT(routes(std::vector<HostGpu*>(size, &gpu)), Each("ipc")) << size;
  EXPECT_THAT(gpu.violations(), testing::IsEmpty());
  EXPECT_EQ(gpu.shared_bytes_in_use(), 0U);
}

#ifdef STRETTO_HAVE_UCX
TEST(GpuLinks, SayWhereCudaIpcCannotBe) {
  HostGpu gpu;
  const Variable wanted("STRETTO_GPU_TRANSPORT", "ipc");
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_THAT(routes({&gpu, &gpu}), Each(HasSubstr("STRETTO_GPU_TRANSPORT=ipc cannot be: not all ranks share memory")));
}
#endif

}  // namespace
}  // namespace stretto
