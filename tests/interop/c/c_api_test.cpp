// The C interface beside its operations: how communicators come and go, what is refused and in which words, memory, ends.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "interop/c/c_ranks.hpp"
#include "stretto/build.hpp"
#include "stretto/device.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

#define EXPECT_REFUSED(call, result, sentence) \
  EXPECT_EQ(call, result);                     \
  EXPECT_THAT(last_error(), sentence)

TEST(CApi, HasTheVersionOfTheLibrary) {
  int version = 0;
  EXPECT_SUCCESS(strettoGetVersion(&version));
  EXPECT_EQ(version, STRETTO_VERSION_CODE);
  EXPECT_EQ(build_version(), fmt::format("{}.{}.{}", STRETTO_MAJOR, STRETTO_MINOR, STRETTO_PATCH));
  for (int i = 0; i < strettoNumResults; ++i) {
    EXPECT_THAT(strettoGetErrorString(static_cast<strettoResult_t>(i)), testing::Not(HasSubstr("no result code")));
  }
}

TEST(CApi, AnswersWhatACommunicatorIs) {
  on_ranks_of_c(3, [](strettoComm_t& comm, int rank) {
    int size = 0;
    int mine = -1;
    EXPECT_SUCCESS(strettoCommCount(comm, &size));
    EXPECT_SUCCESS(strettoCommUserRank(comm, &mine));
    EXPECT_EQ(size, 3);
    EXPECT_EQ(mine, rank);
    strettoComm_t odd = comm;
    EXPECT_SUCCESS(strettoCommSplit(comm, rank == 1 ? 0 : STRETTO_SPLIT_NOCOLOR, 0, &odd, nullptr));
    EXPECT_EQ(odd != nullptr, rank == 1);
    if (rank == 1) {
      EXPECT_SUCCESS(strettoCommDestroy(odd));
    }
  });
}

TEST(CApi, NamesCommunicatorsAsConfigured) {
  strettoUniqueId id;
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  strettoConfig_t config = STRETTO_CONFIG_INITIALIZER;
  config.commName = "trainer";
  config.blocking = 1;
  strettoComm_t comm = nullptr;
  ASSERT_SUCCESS(strettoCommInitRankConfig(&comm, 1, id, 0, &config));
  strettoComm_t part = nullptr;
  ASSERT_SUCCESS(strettoCommSplit(comm, 7, 0, &part, nullptr));
  for (const auto& [of, sentence] : {std::pair(comm, "'trainer'"), {part, "'trainer.7'"}}) {
    EXPECT_REFUSED(strettoRedOpDestroy(strettoAvg, of), strettoInvalidArgument, HasSubstr(sentence));
  }
  EXPECT_SUCCESS(strettoCommDestroy(part));
  config.blocking = 0;
  EXPECT_REFUSED(strettoCommSplit(comm, 7, 0, &part, &config), strettoInvalidArgument, HasSubstr("blocking=0"));
  strettoComm_t none = nullptr;
  strettoConfig_t untouched{};
  EXPECT_REFUSED(strettoCommInitRankConfig(&none, 1, id, 0, &untouched), strettoInvalidArgument,
                 HasSubstr("STRETTO_CONFIG_INITIALIZER"));
  EXPECT_SUCCESS(strettoCommDestroy(comm));
}

TEST(CApi, HasSeveralJobsInOneProcessAtTheSameTime) {
  in_threads(4, [](int job) {
    for (int round = 0; round < 3; ++round) {
      const int size = 1 + (job + round) % 3;
      on_ranks_of_c(size, [=](strettoComm_t& comm, int rank) {
        for (int i = 0; i < 20; ++i) {
          std::vector<std::int64_t> values(1 + 500 * i, 100 * job + rank);
          ASSERT_SUCCESS(
              strettoAllReduce(values.data(), values.data(), values.size(), strettoInt64, strettoSum, comm, nullptr));
          ASSERT_EQ(values.back(), 100 * job * size + size * (size - 1) / 2);
        }
      });
    }
  });
}

TEST(CApi, ARankMayBeInSeveralJobs) {
  strettoUniqueId ids[2];
  for (strettoUniqueId& id : ids) ASSERT_SUCCESS(strettoGetUniqueId(&id));
  in_threads(2, [&](int rank) {
    strettoComm_t first = nullptr;
    strettoComm_t second = nullptr;
    ASSERT_SUCCESS(strettoCommInitRank(&first, 2, ids[0], rank));
    ASSERT_SUCCESS(strettoCommInitRank(&second, 2, ids[1], rank));
    int one = 1;
    int two = 2;
    EXPECT_SUCCESS(strettoAllReduce(&one, &one, 1, strettoInt, strettoSum, first, nullptr));
    EXPECT_SUCCESS(strettoAllReduce(&two, &two, 1, strettoInt, strettoSum, second, nullptr));
    EXPECT_EQ(one, 2);
    EXPECT_EQ(two, 4);
    EXPECT_SUCCESS(strettoCommDestroy(first));
    EXPECT_SUCCESS(strettoCommDestroy(second));
  });
}

// All of it in one thread, as with NCCL and several GPUs.
TEST(CApi, OneThreadMayHaveAllRanks) {
  constexpr int size = 3;
  std::vector<strettoComm_t> made_at_once(size);
  ASSERT_SUCCESS(strettoCommInitAll(made_at_once.data(), size, nullptr));
  std::vector<strettoComm_t> made_in_group(size);
  strettoUniqueId id;
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  ASSERT_SUCCESS(strettoGroupStart());
  for (int rank = 0; rank < size; ++rank) EXPECT_SUCCESS(strettoCommInitRank(&made_in_group[rank], size, id, rank));
  ASSERT_SUCCESS(strettoGroupEnd());
  for (const auto& comms : {made_at_once, made_in_group}) {
    std::vector<strettoComm_t> parts(size);
    ASSERT_SUCCESS(strettoGroupStart());
    for (int rank = 0; rank < size; ++rank) EXPECT_SUCCESS(strettoCommSplit(comms[rank], 0, -rank, &parts[rank], nullptr));
    ASSERT_SUCCESS(strettoGroupEnd());
    std::vector<std::vector<float>> values(size);
    std::vector<strettoStream_t> streams(size);
    for (int rank = 1; rank < size; ++rank) ASSERT_SUCCESS(strettoStreamCreate(&streams[rank], nullptr));
    ASSERT_SUCCESS(strettoGroupStart());
    for (int rank = 0; rank < size; ++rank) {  // rank 0 in the calling thread
      values[rank].assign(10000, static_cast<float>(rank + 1));
      EXPECT_SUCCESS(strettoAllReduce(values[rank].data(), values[rank].data(), 10000, strettoFloat, strettoSum, parts[rank],
                                      streams[rank]));
    }
    ASSERT_SUCCESS(strettoGroupEnd());
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_SUCCESS(strettoStreamSynchronize(streams[rank]));
      EXPECT_EQ(values[rank].back(), 6);
      if (rank > 0) {
        EXPECT_SUCCESS(strettoStreamDestroy(streams[rank]));
      }
    }
    for (int rank = 0; rank < size; ++rank) EXPECT_SUCCESS(strettoCommDestroy(comms[rank]));
    for (int rank = 0; rank < size; ++rank) EXPECT_SUCCESS(strettoCommDestroy(parts[rank]));
  }
  const int gpus[] = {0, 1};
  EXPECT_REFUSED(strettoCommInitAll(made_at_once.data(), 2, gpus), strettoInvalidArgument, HasSubstr("a process uses one"));
}

TEST(CApi, RefusesHandlesThatDoNotExist) {
  int one = 1;
  EXPECT_REFUSED(strettoAllReduce(&one, &one, 1, strettoInt, strettoSum, nullptr, nullptr), strettoInvalidUsage,
                 HasSubstr("There is no communicator"));
  strettoComm_t comm = nullptr;
  ASSERT_SUCCESS(strettoCommInitAll(&comm, 1, nullptr));
  strettoStream_t stream = nullptr;
  ASSERT_SUCCESS(strettoStreamCreate(&stream, nullptr));
  EXPECT_SUCCESS(strettoStreamDestroy(stream));
  EXPECT_EQ(strettoAllReduce(&one, &one, 1, strettoInt, strettoSum, comm, stream), strettoInvalidUsage);
  EXPECT_THAT(last_error(comm), HasSubstr("There is no stream"));
  EXPECT_EQ(strettoStreamDestroy(stream), strettoInvalidUsage);
  EXPECT_SUCCESS(strettoCommDestroy(comm));
  EXPECT_EQ(strettoCommDestroy(comm), strettoInvalidUsage);
  EXPECT_THAT(last_error(comm), HasSubstr("has been destroyed"));
  EXPECT_EQ(strettoCommCount(comm, &one), strettoInvalidUsage);
}

TEST(CApi, NamesTheValuesThatItRefuses) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    EXPECT_THAT(last_error(comm), IsEmpty());
    int values[4] = {rank, rank, rank, rank};
    const auto all_reduce = [&](const void* in, void* out, int type, int op) {
      return strettoAllReduce(in, out, 3, static_cast<strettoDataType_t>(type), static_cast<strettoRedOp_t>(op), comm,
                              nullptr);
    };
    EXPECT_REFUSED(all_reduce(values, values, 12, strettoSum), strettoInvalidArgument, HasSubstr("strettoDataType_t 12"));
    EXPECT_REFUSED(all_reduce(values, values, strettoInt, 99), strettoInvalidArgument, HasSubstr("no reduction 99"));
    EXPECT_REFUSED(all_reduce(nullptr, values, strettoInt, strettoSum), strettoInvalidArgument,
                   AllOf(HasSubstr("all_reduce of 3 i32"), HasSubstr("null input")));
    EXPECT_REFUSED(all_reduce(values, values + 1, strettoInt, strettoSum), strettoInvalidArgument, HasSubstr("overlap"));
    EXPECT_REFUSED(strettoBcast(values, 1, strettoInt, 2, comm, nullptr), strettoInvalidArgument, HasSubstr("2"));
    EXPECT_REFUSED(strettoBcast(values, SIZE_MAX / 2, strettoInt, 0, comm, nullptr), strettoInvalidArgument,
                   HasSubstr("beyond any memory"));
    EXPECT_REFUSED(strettoSend(values, 1, strettoInt, 7, comm, nullptr), strettoInvalidArgument, HasSubstr("7"));
    EXPECT_EQ(last_error(comm), last_error());
    // None of it has harmed the communicator.
    EXPECT_SUCCESS(all_reduce(values, values, strettoInt, strettoSum));
    EXPECT_EQ(values[2], 1);
    strettoResult_t state = strettoInternalError;
    EXPECT_SUCCESS(strettoCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, strettoSuccess);
  });
}

TEST(CApi, RefusesUniqueIdsThatCannotBeUsed) {
  strettoComm_t comm = nullptr;
  strettoUniqueId id{};
  EXPECT_REFUSED(strettoCommInitRank(&comm, 1, id, 0), strettoInvalidArgument, HasSubstr("no unique id"));
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  EXPECT_REFUSED(strettoCommInitRank(&comm, 2, id, 2), strettoInvalidArgument, HasSubstr("Rank 2"));
  ASSERT_SUCCESS(strettoCommInitRank(&comm, 1, id, 0));
  EXPECT_SUCCESS(strettoCommDestroy(comm));
  EXPECT_REFUSED(strettoCommInitRank(&comm, 1, id, 0), strettoInvalidUsage, HasSubstr("has used already"));
  EXPECT_EQ(comm, nullptr);
}

TEST(CApi, SaysWhichRanksDidNotCome) {
  const Variable soon("STRETTO_MEET_TIMEOUT", "0.3");
  strettoUniqueId id{};
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  strettoComm_t comm = nullptr;
  EXPECT_REFUSED(strettoCommInitRank(&comm, 3, id, 0), strettoRemoteError, HasSubstr("ranks 1 and 2 did not come"));
}

TEST(CApi, PremultipliedSumsBelongToTheirCommunicatorAndType) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    double scalar = rank + 1;
    strettoRedOp_t op = strettoSum;
    EXPECT_REFUSED(strettoRedOpCreatePreMulSum(&op, &scalar, strettoDouble, strettoScalarDevice, comm),
                   strettoInvalidArgument, HasSubstr("strettoScalarHostImmediate"));
    std::int64_t big = (std::int64_t{1} << 53) + 1;
    EXPECT_REFUSED(strettoRedOpCreatePreMulSum(&op, &big, strettoInt64, strettoScalarHostImmediate, comm),
                   strettoInvalidArgument, HasSubstr("9007199254740993"));
    ASSERT_SUCCESS(strettoRedOpCreatePreMulSum(&op, &scalar, strettoDouble, strettoScalarHostImmediate, comm));
    scalar = 1000;
    double value = 10;
    ASSERT_SUCCESS(strettoAllReduce(&value, &value, 1, strettoDouble, op, comm, nullptr));
    EXPECT_EQ(value, 30);
    float narrow = 1;
    EXPECT_REFUSED(strettoAllReduce(&narrow, &narrow, 1, strettoFloat, op, comm, nullptr), strettoInvalidArgument,
                   AllOf(HasSubstr("made for f64"), HasSubstr("used for f32")));
    strettoComm_t other = nullptr;
    ASSERT_SUCCESS(strettoCommSplit(comm, 0, 0, &other, nullptr));
    EXPECT_EQ(strettoAllReduce(&value, &value, 1, strettoDouble, op, other, nullptr), strettoInvalidArgument);
    EXPECT_EQ(strettoRedOpDestroy(op, other), strettoInvalidArgument);
    EXPECT_SUCCESS(strettoRedOpDestroy(op, comm));
    EXPECT_EQ(strettoAllReduce(&value, &value, 1, strettoDouble, op, comm, nullptr), strettoInvalidArgument);
    EXPECT_SUCCESS(strettoCommDestroy(other));
  });
}

TEST(CApi, AGroupWithAnErrorBeginsNothing) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    EXPECT_REFUSED(strettoGroupEnd(), strettoInvalidUsage, HasSubstr("without strettoGroupStart"));
    int value = rank;
    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_SUCCESS(strettoAllReduce(&value, &value, 1, strettoInt, strettoMax, comm, nullptr));
    EXPECT_EQ(strettoBcast(&value, 1, strettoInt, 5, comm, nullptr), strettoInvalidArgument);
    EXPECT_EQ(strettoCommDestroy(comm), strettoInvalidUsage);
    EXPECT_REFUSED(strettoGroupEnd(), strettoInvalidArgument, HasSubstr("5"));
    EXPECT_EQ(value, rank);
    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_SUCCESS(strettoAllReduce(&value, &value, 1, strettoInt, strettoMax, comm, nullptr));
    strettoComm_t part = nullptr;
    EXPECT_SUCCESS(strettoCommSplit(comm, 0, 0, &part, nullptr));
    EXPECT_REFUSED(strettoGroupEnd(), strettoInvalidUsage, HasSubstr("a group of each"));
    EXPECT_SUCCESS(strettoAllReduce(&value, &value, 1, strettoInt, strettoMax, comm, nullptr));
    EXPECT_EQ(value, 1);
  });
}

TEST(CApi, MemoryIsRegisteredOnlyWhereThatIsTrue) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    void* memory = nullptr;
    ASSERT_SUCCESS(strettoMemAlloc(&memory, 4096));
    char own[64];
    void* handle = nullptr;
    EXPECT_REFUSED(strettoCommRegister(comm, own, sizeof own, &handle), strettoInvalidArgument, HasSubstr("64 bytes"));
    EXPECT_EQ(strettoCommRegister(comm, static_cast<char*>(memory) + 1, 4096, &handle), strettoInvalidArgument);
    ASSERT_SUCCESS(strettoCommRegister(comm, static_cast<char*>(memory) + 96, 4000, &handle));
    EXPECT_REFUSED(strettoMemFree(memory), strettoInvalidUsage, HasSubstr("1 registrations"));
    EXPECT_SUCCESS(strettoCommDeregister(comm, handle));
    EXPECT_EQ(strettoCommDeregister(comm, handle), strettoInvalidArgument);

    strettoWindow_t window = nullptr;
    // One rank with other memory, and all are told which.
    EXPECT_EQ(strettoCommWindowRegister(comm, rank == 1 ? own : memory, 64, &window, STRETTO_WIN_COLL_SYMMETRIC),
              strettoInvalidArgument);
    EXPECT_THAT(last_error(comm), AllOf(HasSubstr("64 bytes"), HasSubstr("rank 1")));
    EXPECT_REFUSED(strettoCommWindowRegister(comm, memory, 64 + rank, &window, STRETTO_WIN_DEFAULT), strettoInvalidArgument,
                   HasSubstr("65 bytes"));
    EXPECT_EQ(strettoCommWindowRegister(comm, memory, 64, &window, 2), strettoInvalidArgument);
    ASSERT_SUCCESS(strettoCommWindowRegister(comm, memory, 64, &window, STRETTO_WIN_COLL_SYMMETRIC));
    EXPECT_EQ(strettoMemFree(memory), strettoInvalidUsage);
    EXPECT_SUCCESS(strettoCommWindowDeregister(comm, window));
    ASSERT_SUCCESS(strettoCommWindowRegister(comm, memory, 64, &window, STRETTO_WIN_DEFAULT));
    EXPECT_SUCCESS(strettoCommDestroy(comm));  // and its window
    comm = nullptr;
    EXPECT_SUCCESS(strettoMemFree(memory));
    EXPECT_REFUSED(strettoMemFree(memory), strettoInvalidArgument, HasSubstr("which is free"));
    EXPECT_SUCCESS(strettoMemFree(nullptr));
  });
}

TEST(CApi, FinalizeWaitsAndEndsOperations) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    strettoStream_t stream = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&stream, nullptr));
    std::vector<int> values(100000, rank);
    for (int i = 0; i < 4; ++i) {
      EXPECT_SUCCESS(strettoAllReduce(values.data(), values.data(), values.size(), strettoInt, strettoSum, comm, stream));
    }
    EXPECT_SUCCESS(strettoCommFinalize(comm));
    EXPECT_EQ(strettoStreamQuery(stream), strettoSuccess);
    EXPECT_EQ(values.back(), 8);
    EXPECT_REFUSED(strettoBcast(values.data(), 1, strettoInt, 0, comm, stream), strettoInvalidUsage,
                   HasSubstr("strettoCommFinalize"));
    EXPECT_SUCCESS(strettoStreamDestroy(stream));
  });
}

// Of a communicator that another rank has aborted, once that is known here.
std::string end_of(strettoComm_t comm) {
  strettoResult_t state = strettoSuccess;
  for (int i = 0; i < 5000 && state == strettoSuccess; ++i) {
    EXPECT_SUCCESS(strettoCommGetAsyncError(comm, &state));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(state, strettoRemoteError);
  return last_error(comm);
}

TEST(CApi, AbortEndsOperationsOnAllRanks) {
  std::atomic<int> begun = 0;
  on_ranks_of_c(3, [&](strettoComm_t& comm, int rank) {
    int value = rank;
    strettoStream_t stream = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&stream, nullptr));
    if (rank == 0) {  // never takes part
      while (begun < 2) std::this_thread::yield();
      EXPECT_SUCCESS(strettoCommAbort(comm));
    }
    if (rank == 1) {  // waits in a stream, and is told by looking
      EXPECT_SUCCESS(strettoAllReduce(&value, &value, 1, strettoInt, strettoSum, comm, stream));
      ++begun;
      EXPECT_THAT(end_of(comm), AllOf(HasSubstr("Rank 0 gave up"), HasSubstr("strettoCommAbort")));
      EXPECT_EQ(strettoStreamSynchronize(stream), strettoRemoteError);
      EXPECT_THAT(last_error(), HasSubstr("Rank 0 gave up"));
      EXPECT_EQ(strettoCommDestroy(comm), strettoRemoteError);
    }
    if (rank == 2) {  // waits in the calling thread
      ++begun;
      EXPECT_EQ(strettoAllReduce(&value, &value, 1, strettoInt, strettoSum, comm, nullptr), strettoRemoteError);
      EXPECT_THAT(last_error(comm), HasSubstr("Rank 0 gave up"));
      EXPECT_SUCCESS(strettoCommAbort(comm));
    }
    comm = nullptr;
    strettoStreamDestroy(stream);
  });
}

TEST(CApi, AnotherThreadMayAbortWhatBlocks) {
  strettoUniqueId id{};
  ASSERT_SUCCESS(strettoGetUniqueId(&id));
  strettoComm_t comms[2] = {};
  in_threads(2, [&](int rank) { ASSERT_SUCCESS(strettoCommInitRank(&comms[rank], 2, id, rank)); });
  std::atomic<bool> begun = false;
  std::thread blocked([&] {
    int value = 0;
    begun = true;
    EXPECT_EQ(strettoRecv(&value, 1, strettoInt, 1, comms[0], nullptr), strettoRemoteError);
  });
  while (!begun) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_SUCCESS(strettoCommAbort(comms[0]));
  blocked.join();
  EXPECT_THAT(end_of(comms[1]), HasSubstr("gave up"));
  EXPECT_SUCCESS(strettoCommAbort(comms[1]));
}

TEST(CApi, HasNoGpuWhereThereIsNone) {
  if (cuda_obstacle().empty()) GTEST_SKIP() << "There is a GPU.";
  strettoComm_t comm = nullptr;
  ASSERT_SUCCESS(strettoCommInitAll(&comm, 1, nullptr));
  int device = -1;
  EXPECT_EQ(strettoCommCuDevice(comm, &device), strettoUnhandledCudaError);
  EXPECT_EQ(last_error(comm), cuda_obstacle());
  strettoStream_t stream = nullptr;
  EXPECT_REFUSED(strettoStreamFromCuda(&stream, nullptr), strettoUnhandledCudaError, cuda_obstacle());
  EXPECT_SUCCESS(strettoCommDestroy(comm));
}

}  // namespace
}  // namespace stretto
