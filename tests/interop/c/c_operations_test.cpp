// Every operation of the C interface against the oracle of the collectives, on ranks that are threads.
#include "collectives/oracle.hpp"
#include "interop/c/c_ranks.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using oracle::Buffers;
using oracle::Problem;

// In the order of DType.
constexpr strettoDataType_t datatypes[] = {strettoFloat64, strettoFloat32, strettoBfloat16,   strettoFloat16,
                                           strettoInt8,    strettoUint8,   strettoInt32,      strettoUint32,
                                           strettoInt64,   strettoUint64,  strettoFloat8e4m3, strettoFloat8e5m2};
strettoDataType_t datatype_of(DType dtype) { return datatypes[static_cast<int>(dtype)]; }

// premul_sum: made here, of the factor that the oracle has for this rank.
strettoRedOp_t reduction_of(const Problem& problem, int rank, strettoComm_t comm) {
  switch (problem.op) {
    case ReduceOp::sum: return strettoSum;
    case ReduceOp::prod: return strettoProd;
    case ReduceOp::min: return strettoMin;
    case ReduceOp::max: return strettoMax;
    case ReduceOp::avg: return strettoAvg;
    case ReduceOp::premul_sum: break;
  }
  const Tensor scalar({1}, problem.dtype, Device::cpu);
  scalar.set(0, problem.factor(rank));
  strettoRedOp_t op = strettoSum;
  EXPECT_SUCCESS(
      strettoRedOpCreatePreMulSum(&op, scalar.raw(), datatype_of(problem.dtype), strettoScalarHostImmediate, comm));
  return op;
}

strettoResult_t start(const Call& call, strettoRedOp_t op, strettoComm_t comm, strettoStream_t stream) {
  const void* const in = call.input;
  void* const out = call.output;
  const auto count = static_cast<std::size_t>(call.count);
  const strettoDataType_t type = datatype_of(call.dtype);
  switch (call.collective) {
    case Collective::all_reduce: return strettoAllReduce(in, out, count, type, op, comm, stream);
    case Collective::reduce_scatter: return strettoReduceScatter(in, out, count, type, op, comm, stream);
    case Collective::all_gather: return strettoAllGather(in, out, count, type, comm, stream);
    case Collective::all_to_all: return strettoAlltoAll(in, out, count, type, comm, stream);
    case Collective::broadcast: return strettoBroadcast(in, out, count, type, call.root, comm, stream);
    case Collective::reduce: return strettoReduce(in, out, count, type, op, call.root, comm, stream);
    case Collective::gather: return strettoGather(in, out, count, type, call.root, comm, stream);
    case Collective::scatter: return strettoScatter(in, out, count, type, call.root, comm, stream);
    default: return strettoInternalError;
  }
}

void expect_right(const Problem& problem, strettoComm_t comm, int rank, strettoStream_t stream) {
  for (const bool in_place : {false, true}) {
    if (in_place && !can_be_in_place(problem.collective)) continue;
    Buffers buffers(problem, rank, in_place);
    const bool combines = reduces(problem.collective);
    const strettoRedOp_t op = combines ? reduction_of(problem, rank, comm) : strettoSum;
    ASSERT_SUCCESS(start(buffers.call(), op, comm, stream));
    if (op >= strettoNumOps) {
      EXPECT_SUCCESS(strettoRedOpDestroy(op, comm));  // the operation has what it needs
    }
    ASSERT_SUCCESS(strettoStreamSynchronize(stream));
    ASSERT_EQ(buffers.fault(), "") << name(problem.collective) << " of " << problem.count << " " << name(problem.dtype)
                                   << " (" << name(problem.op) << ")" << (in_place ? ", in place" : "");
  }
}

class COperations : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, COperations,
                         testing::Values(Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                         Collective::all_to_all, Collective::broadcast, Collective::reduce,
                                         Collective::gather, Collective::scatter),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

TEST_P(COperations, EqualTheOracleInEveryTypeAndReduction) {
  on_ranks_of_c(3, [](strettoComm_t& comm, int rank) {
    strettoStream_t stream = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&stream, "operations"));
    for (const DType dtype : oracle::all_dtypes) {
      for (const ReduceOp op : reduces(GetParam()) ? oracle::all_ops : std::vector{ReduceOp::sum}) {
        expect_right({GetParam(), 3, 37, dtype, op}, comm, rank, op == ReduceOp::sum ? stream : nullptr);
      }
    }
    EXPECT_SUCCESS(strettoStreamDestroy(stream));
  });
}

TEST_P(COperations, EqualTheOracleAtEveryRootAndSize) {
  for (const int size : {1, 2, 4}) {
    on_ranks_of_c(size, [size](strettoComm_t& comm, int rank) {
      for (const std::int64_t count : {0, 1, 250, 30000}) {
        for (int root = 0; root < (has_root(GetParam()) ? size : 1); ++root) {
          expect_right({GetParam(), size, count, DType::f32, ReduceOp::sum, root}, comm, rank, nullptr);
        }
      }
    });
  }
}

TEST(COperations, LeaveBuffersAloneThatOnlyTheRootHas) {
  on_ranks_of_c(3, [](strettoComm_t& comm, int rank) {
    int values[3] = {rank, rank, rank};
    void* const nowhere = reinterpret_cast<void*>(8);
    EXPECT_SUCCESS(strettoReduce(values, rank == 1 ? values : nowhere, 3, strettoInt, strettoSum, 1, comm, nullptr));
    EXPECT_EQ(values[2], rank == 1 ? 3 : rank);
    int got[3] = {};
    EXPECT_SUCCESS(strettoScatter(rank == 1 ? values : nowhere, got, 1, strettoInt, 1, comm, nullptr));
    EXPECT_EQ(got[0], 3);
    EXPECT_SUCCESS(strettoBcast(got, 3, strettoInt, 2, comm, nullptr));
  });
}

TEST(COperations, SendAndReceiveInOneGroupAndInOrder) {
  on_ranks_of_c(4, [](strettoComm_t& comm, int rank) {
    strettoStream_t stream = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&stream, nullptr));
    std::vector<std::vector<int>> got(4, std::vector<int>(20000));
    std::vector<int> mine(20000, rank);
    ASSERT_SUCCESS(strettoGroupStart());
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_SUCCESS(strettoSend(mine.data(), mine.size(), strettoInt, peer, comm, stream));
      EXPECT_SUCCESS(strettoRecv(got[peer].data(), mine.size(), strettoInt, peer, comm, stream));
    }
    ASSERT_SUCCESS(strettoGroupEnd());
    ASSERT_SUCCESS(strettoStreamSynchronize(stream));
    EXPECT_EQ(strettoStreamQuery(stream), strettoSuccess);
    for (int peer = 0; peer < 4; ++peer) EXPECT_EQ(got[peer], std::vector<int>(20000, peer));
    if (rank == 0) {
      for (const int value : {5, 6, 7}) EXPECT_SUCCESS(strettoSend(&value, 1, strettoInt, 3, comm, nullptr));
    }
    if (rank == 3) {
      for (const int value : {5, 6, 7}) {
        int received = 0;
        EXPECT_SUCCESS(strettoRecv(&received, 1, strettoInt, 0, comm, nullptr));
        EXPECT_EQ(received, value);
      }
    }
    EXPECT_SUCCESS(strettoStreamDestroy(stream));
  });
}

TEST(COperations, GroupsNestAndTakeSeveralCommunicators) {
  on_ranks_of_c(4, [](strettoComm_t& comm, int rank) {
    strettoComm_t pair = nullptr;
    ASSERT_SUCCESS(strettoCommSplit(comm, rank / 2, -rank, &pair, nullptr));
    int size = 0;
    int place = -1;
    EXPECT_SUCCESS(strettoCommCount(pair, &size));
    EXPECT_SUCCESS(strettoCommUserRank(pair, &place));
    EXPECT_EQ(size, 2);
    EXPECT_EQ(place, 1 - rank % 2);  // keys turn the order round
    double all = rank;
    double two = rank;
    double gathered[4] = {};
    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_SUCCESS(strettoGroupStart());
    // In one order on half of the ranks, in the other order on the rest.
    const auto add_up = [&] { return strettoAllReduce(&two, &two, 1, strettoDouble, strettoSum, pair, nullptr); };
    EXPECT_SUCCESS(rank < 2 ? add_up() : strettoSuccess);
    EXPECT_SUCCESS(strettoAllReduce(&all, &all, 1, strettoDouble, strettoMax, comm, nullptr));
    EXPECT_SUCCESS(rank >= 2 ? add_up() : strettoSuccess);
    EXPECT_SUCCESS(strettoGroupEnd());
    EXPECT_EQ(all, rank);  // not before the outermost end
    const double mine = rank;
    EXPECT_SUCCESS(strettoAllGather(&mine, gathered, 1, strettoDouble, comm, nullptr));
    EXPECT_SUCCESS(strettoGroupEnd());
    EXPECT_EQ(all, 3);
    EXPECT_EQ(two, rank < 2 ? 1 : 5);
    EXPECT_EQ(gathered[3], 3);
    EXPECT_SUCCESS(strettoCommDestroy(pair));
  });
}

// STRETTO_CHECK=1 compares what groups hold, communicator by communicator: within one, their order counts, across two it
// does not.
TEST(COperations, GroupsAreCompared) {
  const Variable check("STRETTO_CHECK", "1"), timeout("STRETTO_TIMEOUT", "60");
  std::array<std::string, 2> said;
  on_ranks_of_c(2, [&](strettoComm_t& comm, int rank) {
    strettoComm_t other = nullptr;
    ASSERT_SUCCESS(strettoCommSplit(comm, 0, rank, &other, nullptr));
    float sum[10] = {}, root[5] = {};
    const auto sum_up = [&](strettoComm_t where) {
      return strettoAllReduce(sum, sum, 10, strettoFloat, strettoSum, where, nullptr);
    };
    const auto spread = [&] { return strettoBroadcast(root, root, 5, strettoFloat, 0, comm, nullptr); };
    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_SUCCESS(rank == 0 ? sum_up(other) : spread());
    EXPECT_SUCCESS(rank == 0 ? spread() : sum_up(other));
    EXPECT_SUCCESS(strettoGroupEnd());

    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_SUCCESS(rank == 0 ? sum_up(comm) : spread());
    EXPECT_SUCCESS(rank == 0 ? spread() : sum_up(comm));
    EXPECT_NE(strettoGroupEnd(), strettoSuccess);
    said[static_cast<std::size_t>(rank)] = last_error();
    strettoCommAbort(other);
    strettoCommAbort(comm);
    comm = nullptr;
  });
  for (const std::string& sentence : said) {
    EXPECT_NE(sentence.find("called all_reduce of 10 f32 (sum)"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("called broadcast of 5 f32 with root 0"), std::string::npos) << sentence;
  }
}

TEST(COperations, StreamsWaitForEachOther) {
  on_ranks_of_c(2, [](strettoComm_t& comm, int rank) {
    strettoStream_t first = nullptr;
    strettoStream_t second = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&first, "first"));
    ASSERT_SUCCESS(strettoStreamCreate(&second, "second"));
    std::vector<float> values(100000, static_cast<float>(rank + 1));
    std::vector<float> twice(values.size());
    for (int round = 0; round < 5; ++round) {
      EXPECT_SUCCESS(strettoAllReduce(values.data(), values.data(), values.size(), strettoFloat, strettoAvg, comm, first));
      EXPECT_SUCCESS(strettoStreamWait(second, first));
      EXPECT_SUCCESS(strettoAllReduce(values.data(), twice.data(), values.size(), strettoFloat, strettoSum, comm, second));
      EXPECT_SUCCESS(strettoStreamWait(first, second));
    }
    EXPECT_SUCCESS(strettoStreamWait(nullptr, second));
    EXPECT_EQ(twice.back(), 3);
    EXPECT_SUCCESS(strettoStreamDestroy(first));
    EXPECT_SUCCESS(strettoStreamDestroy(second));
  });
}

}  // namespace
}  // namespace stretto
