// Each test breaks one of NCCL's rules; the stand-in must report it.
#include "stand_in/host_nccl.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/error.hpp"
#include "transport/gpu/gpu_ranks.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

void look() {}

// Runs the calls on two ranks, each with their communicator, a stream and 64 bytes of memory. Returns the violations.
std::vector<std::string> violations_of(
    const std::function<void(HostNccl&, NcclComm, int rank, GpuStream, std::byte*)>& calls, double timeout = 0.3) {
  HostGpu gpu;
  HostNccl nccl(gpu, timeout);
  const NcclId id = nccl.new_id();
  on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const OnGpu<std::uint8_t> memory(gpu, stream, 64, std::uint8_t{1});
    memory.values();
    const NcclComm comm = nccl.join(2, id, rank, look);
    calls(nccl, comm, rank, stream, memory.bytes_at());
    memory.values();  // waits for the stream
  });
  return nccl.violations();
}

TEST(HostNccl, ReportsSizesThatDiffer) {
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank == 0) return nccl.send(data, 8, 1, comm, stream);
                nccl.recv(data, 12, 0, comm, stream);
              }),
              testing::ElementsAre("Rank 0 sends 8 bytes to rank 1, which receives 12."));
}

TEST(HostNccl, ReportsCollectivesThatDiffer) {
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                nccl.all_reduce(data, data, 4 + rank, DType::f32, ReduceOp::sum, comm, stream);
              }),
              Contains(AllOf(HasSubstr("Ranks 0 and 1 differ in collective 0"), HasSubstr("all_reduce of 5 f32 by sum"))));
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank == 0) return nccl.all_reduce(data, data, 4, DType::f32, ReduceOp::sum, comm, stream);
                nccl.broadcast(data, data, 4, DType::f32, 0, comm, stream);
              }),
              Contains(HasSubstr("broadcast of 4 f32, root 0")));
}

TEST(HostNccl, ReportsWhoWaitsForWhom) {
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank == 1) nccl.recv(data, 12, 0, comm, stream);
              }),
              testing::ElementsAre("Rank 1 has waited 0.3 s for 12 bytes from rank 0."));
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank == 1) nccl.send(data, 12, 0, comm, stream);
              }),
              testing::ElementsAre("Rank 1 has waited 0.3 s for rank 0 to receive 12 bytes."));
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank == 0) nccl.all_reduce(data, data, 4, DType::f32, ReduceOp::sum, comm, stream);
              }),
              testing::ElementsAre(AllOf(HasSubstr("all_reduce of 4 f32"), HasSubstr("for rank 1."))));
}

// Both ranks send first, so without a group neither reaches its receive.
TEST(HostNccl, BuffersNoSends) {
  const auto calls = [](bool grouped) {
    return [grouped](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
      if (grouped) nccl.group_start();
      nccl.send(data, 8, 1 - rank, comm, stream);
      nccl.recv(data + 8, 8, 1 - rank, comm, stream);
      if (grouped) nccl.group_end();
    };
  };
  EXPECT_THAT(violations_of(calls(false)), Contains(HasSubstr("to receive 8 bytes")));
  EXPECT_THAT(violations_of(calls(true), 5), IsEmpty());
}

TEST(HostNccl, ReportsGroupsThatAreNotEnded) {
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream stream, std::byte* data) {
                if (rank != 0) return;
                nccl.group_start();
                nccl.send(data, 8, 1, comm, stream);
              }),
              testing::ElementsAre("A thread has ended between group_start() and group_end()."));
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm comm, int rank, GpuStream, std::byte*) {
                if (rank != 0) return;
                nccl.group_start();
                EXPECT_THAT(sentence_of([&] { nccl.destroy(comm); }), HasSubstr("between group_start() and group_end()"));
                EXPECT_ANY_THROW(nccl.group_end());
              }),
              Contains(HasSubstr("is destroyed between")));
  EXPECT_THAT(violations_of([](HostNccl& nccl, NcclComm, int rank, GpuStream, std::byte*) {
                if (rank == 0) nccl.group_end();
              }),
              Contains(HasSubstr("without group_start()")));
}

TEST(HostNccl, ReportsWhatElseIsPutIntoAStreamDuringAGroup) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const StreamInUse stream(gpu);
  const OnGpu<std::uint8_t> memory(gpu, stream, 64, std::uint8_t{1});
  nccl.group_start();
  gpu.zero(memory.at(), 8, stream);
  EXPECT_THAT(sentence_of([&] { nccl.group_end(); }), HasSubstr("Something else was put into a stream"));
  EXPECT_THAT(nccl.violations(), testing::SizeIs(1));
}

TEST(HostNccl, ReportsStreamsThatDoNotWaitForEachOther) {
  for (const bool ordered : {false, true}) {
    HostGpu gpu;
    HostNccl nccl(gpu);
    const NcclId id = nccl.new_id();
    on_ranks(2, [&](int rank) {
      const StreamInUse one(gpu), other(gpu);
      const OnGpu<std::uint8_t> data(gpu, one, 64, std::uint8_t{1});
      data.values();
      const NcclComm comm = nccl.join(2, id, rank, look);
      gpu.put(one, [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
      nccl.all_reduce(data.at(), data.at(), 8, DType::u8, ReduceOp::max, comm, one);
      const GpuEvent event = gpu.create_event();
      gpu.record(event, one);
      if (ordered) gpu.wait(other, event);
      nccl.all_reduce(data.at(), data.at(), 8, DType::u8, ReduceOp::max, comm, other);
      gpu.wait_until_here(one, "the test");
      gpu.wait_until_here(other, "the test");
      gpu.destroy(event);
      nccl.destroy(comm);
    });
    if (ordered) {
      EXPECT_THAT(nccl.violations(), IsEmpty());
    } else {
      EXPECT_THAT(nccl.violations(), Contains(HasSubstr("let one stream wait for the other")));
    }
  }
}

TEST(HostNccl, ReportsTwoStreamsOfACommunicatorInAGroup) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const StreamInUse one(gpu), other(gpu);
  const OnGpu<std::uint8_t> data(gpu, one, 64, std::uint8_t{1});
  const NcclComm comm = nccl.join(1, nccl.new_id(), 0, look);
  nccl.group_start();
  nccl.send(data.at(), 8, 0, comm, one);
  EXPECT_THAT(sentence_of([&] { nccl.recv(data.at(8), 8, 0, comm, other); }), HasSubstr("two streams in a group"));
  EXPECT_ANY_THROW(nccl.group_end());
}

TEST(HostNccl, ReportsTwoThreadsThatCallOneCommunicator) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  nccl.take_long(20000);
  const NcclComm comm = nccl.join(1, nccl.new_id(), 0, look);
  std::thread other([&] { sentence_of([&] { nccl.failure(comm); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  sentence_of([&] { nccl.failure(comm); });
  other.join();
  EXPECT_THAT(nccl.violations(), testing::ElementsAre(HasSubstr("Two threads call NCCL with one communicator of rank 0")));
}

TEST(HostNccl, ReportsWhatIsCalledOrPutIntoAStreamBeforeACallIsSettled) {
  HostGpu gpu;
  HostNccl nccl(gpu, 0.3);
  nccl.connect_first();
  const NcclId id = nccl.new_id();
  on_ranks(2, [&](int rank) {
    const StreamInUse stream(gpu);
    const OnGpu<std::uint8_t> data(gpu, stream, 64, std::uint8_t{1});
    const NcclComm comm = nccl.join(2, id, rank, look);
    nccl.all_reduce(data.at(), data.at(), 8, DType::u8, ReduceOp::max, comm, stream);
    if (rank == 0) {
      EXPECT_THAT(sentence_of([&] { nccl.send(data.at(), 8, 1, comm, stream); }), HasSubstr("was settled"));
      while (!nccl.settled(comm)) std::this_thread::yield();
    } else {
      gpu.zero(data.at(), 8, stream);
      EXPECT_THAT(sentence_of([&] {
                    while (!nccl.settled(comm)) std::this_thread::yield();
                  }),
                  HasSubstr("before what had been called was settled"));
      nccl.abort(comm);
    }
  });
  EXPECT_THAT(nccl.violations(), Contains(HasSubstr("Something else was put into a stream")));
}

TEST(HostNccl, ReportsTheUseOfWhatIsGone) {
  for (const bool aborts : {false, true}) {
    HostGpu gpu;
    HostNccl nccl(gpu);
    const StreamInUse stream(gpu);
    const OnGpu<std::uint8_t> data(gpu, stream, 64, std::uint8_t{1});
    const NcclComm comm = nccl.join(1, nccl.new_id(), 0, look);
    aborts ? nccl.abort(comm) : nccl.destroy(comm);
    EXPECT_THAT(sentence_of([&] { nccl.send(data.at(), 8, 0, comm, stream); }),
                HasSubstr(aborts ? "has aborted" : "has destroyed"));
    EXPECT_THAT(sentence_of([&] { nccl.destroy(comm); }), HasSubstr(aborts ? "has aborted" : "has destroyed"));
    EXPECT_THAT(nccl.violations(), testing::SizeIs(2));
  }
}

TEST(HostNccl, ReportsMemoryThatIsNotTheGpusOrOverlaps) {
  HostGpu gpu;
  HostNccl nccl(gpu);
  const StreamInUse stream(gpu);
  const OnGpu<std::uint8_t> data(gpu, stream, 64, std::uint8_t{1});
  const NcclComm comm = nccl.join(1, nccl.new_id(), 0, look);
  std::vector<float> on_host(4);
  const auto sums = [&](void* input, void* output) {
    return sentence_of([&] { nccl.all_reduce(input, output, 4, DType::f32, ReduceOp::sum, comm, stream); });
  };
  EXPECT_THAT(sums(on_host.data(), data.at()), HasSubstr("not in this GPU's memory"));
  EXPECT_THAT(sums(data.at(1), data.at(32)), HasSubstr("not aligned for f32"));
  EXPECT_THAT(sums(data.at(), data.at(4)), HasSubstr("not as in place"));
  EXPECT_EQ(sums(data.at(), data.at(16)), "");
  nccl.destroy(comm);
}

}  // namespace
}  // namespace stretto
