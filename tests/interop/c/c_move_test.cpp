// Moves of the C interface, on ranks that are threads.
#include <gmock/gmock.h>

#include <numeric>

#include "interop/c/c_ranks.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

constexpr std::size_t moved_shape[] = {6, 4};
constexpr int moved_from[] = {0, 1}, moved_to[] = {1, 2};

strettoMovedTensor_t rows_to(int dimension, strettoDataType_t datatype = strettoFloat,
                             strettoFormat_t format = strettoFormatNone) {
  return {datatype, 2, moved_shape, {2, moved_from, 0}, {2, moved_to, dimension}, format};
}

// The elements of a rank's rows, each its number in the tensor.
std::vector<float> rows_of_rank(int rank) {
  std::vector<float> result(rank < 2 ? 12 : 0);
  std::iota(result.begin(), result.end(), static_cast<float>(12 * rank));
  return result;
}

TEST(CMove, BringsRowsToColumnsAndCopies) {
  on_ranks_of_c(3, [](strettoComm_t& comm, int rank) {
    const strettoMovedTensor_t tensors[] = {rows_to(1), rows_to(STRETTO_REPLICATED)};
    strettoMove_t move = nullptr;
    ASSERT_SUCCESS(strettoMoveCreate(&move, tensors, 2, 0, comm));
    std::size_t sendcount = 0, recvcount = 0;
    ASSERT_SUCCESS(strettoMoveCounts(move, 0, &sendcount, &recvcount, comm));
    EXPECT_EQ(sendcount, rank < 2 ? 12u : 0u);
    EXPECT_EQ(recvcount, rank > 0 ? 12u : 0u);
    ASSERT_SUCCESS(strettoMoveCounts(move, 1, nullptr, &recvcount, comm));
    EXPECT_EQ(recvcount, rank > 0 ? 24u : 0u);
    strettoStream_t stream = nullptr;
    ASSERT_SUCCESS(strettoStreamCreate(&stream, "moves"));
    const std::vector<float> mine = rows_of_rank(rank);
    for (strettoStream_t each : {static_cast<strettoStream_t>(nullptr), stream, stream}) {
      std::vector<float> columns(rank > 0 ? 12 : 0), whole(rank > 0 ? 24 : 0);
      const void* const sent[] = {rank < 2 ? mine.data() : nullptr, rank < 2 ? mine.data() : nullptr};
      void* const received[] = {rank > 0 ? columns.data() : nullptr, rank > 0 ? whole.data() : nullptr};
      ASSERT_SUCCESS(strettoMoveStart(sent, received, move, comm, each));
      if (each != nullptr) {
        ASSERT_SUCCESS(strettoStreamSynchronize(each));
      }
      for (std::size_t i = 0; i < columns.size(); ++i) {
        EXPECT_EQ(columns[i], static_cast<float>(i / 2 * 4 + i % 2 + (rank == 2 ? 2 : 0)));
      }
      for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], static_cast<float>(i));
    }
    ASSERT_SUCCESS(strettoStreamDestroy(stream));
    if (rank != 1) {
      EXPECT_SUCCESS(strettoMoveDestroy(move, comm));  // rank 1's goes with its communicator
    }
  });
}

TEST(CMove, TravelsInFormats) {
  const std::size_t long_shape[] = {1024};
  const int source = 0, target = 1;
  for (const strettoFormat_t format :
       {strettoFormatNone, strettoFormatInt8, strettoFormatInt4, strettoFormatFp8, strettoFormatOnebit}) {
    on_ranks_of_c(2, [&](strettoComm_t& comm, int rank) {
      const strettoMovedTensor_t tensor = {strettoFloat, 1, long_shape, {1, &source, 0}, {1, &target, 0}, format};
      strettoMove_t move = nullptr;
      ASSERT_SUCCESS(strettoMoveCreate(&move, &tensor, 1, 0, comm));
      std::vector<float> sent(1024), received(1024);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<float>(i);
      const void* const from[] = {rank == 0 ? sent.data() : nullptr};
      void* const to[] = {rank == 1 ? received.data() : nullptr};
      ASSERT_SUCCESS(strettoMoveStart(from, to, move, comm, nullptr));
      float most = 0;
      for (std::size_t i = 0; i < received.size(); ++i) most = std::max(most, std::abs(received[i] - sent[i]));
      if (rank != 1) return;
      if (format == strettoFormatNone) {
        EXPECT_EQ(most, 0);
      } else {
        EXPECT_GT(most, 0);
        EXPECT_LT(most, format == strettoFormatOnebit ? 512 : 80);
      }
    });
  }
}

TEST(CMove, RefusesInSentences) {
  on_ranks_of_c(3, [](strettoComm_t& comm, int rank) {
    strettoMove_t move = nullptr;
    const auto sentence = [&](strettoMovedTensor_t tensor) {
      EXPECT_EQ(strettoMoveCreate(&move, &tensor, 1, 0, comm), strettoInvalidArgument);
      EXPECT_EQ(move, nullptr);
      return last_error(comm);
    };
    EXPECT_THAT(sentence(rows_to(2)), HasSubstr("along dimension 2"));
    EXPECT_THAT(sentence(rows_to(-2)), HasSubstr("dimension -2, which is negative"));
    EXPECT_THAT(sentence(rows_to(0, strettoInt, strettoFormatInt8)), HasSubstr("does not travel in int8"));
    EXPECT_THAT(sentence(rows_to(0, strettoFloat, static_cast<strettoFormat_t>(9))), HasSubstr("no strettoFormat_t 9"));
    strettoMovedTensor_t none = rows_to(0);
    none.ndims = 0;
    EXPECT_THAT(sentence(none), HasSubstr("has 0 dimensions"));
    const strettoMovedTensor_t good = rows_to(0);
    EXPECT_EQ(strettoMoveCreate(nullptr, &good, 1, 0, comm), strettoInvalidArgument);
    EXPECT_EQ(strettoMoveCreate(&move, &good, 1, 100, comm), strettoInvalidArgument);
    EXPECT_THAT(last_error(comm), HasSubstr("at least 65536 bytes"));
    const strettoMovedTensor_t unequal = rows_to(0, rank == 0 ? strettoFloat16 : strettoBfloat16);
    EXPECT_NE(strettoMoveCreate(&move, &unequal, 1, 0, comm), strettoSuccess);
    if (rank == 0) {
      EXPECT_THAT(last_error(comm), HasSubstr("on rank 0, 'bf16"));
    }
    ASSERT_SUCCESS(strettoMoveCreate(&move, &good, 1, 0, comm));
    const void* const sent[] = {nullptr};
    void* const received[] = {nullptr};
    EXPECT_EQ(strettoMoveStart(sent, received, move, comm, nullptr), strettoInvalidArgument);
    EXPECT_THAT(last_error(comm), HasSubstr(rank < 2 ? "elements that rank" : "elements that rank 2 gets"));
    EXPECT_EQ(strettoMoveCounts(move, 1, nullptr, nullptr, comm), strettoInvalidArgument);
    EXPECT_SUCCESS(strettoGroupStart());
    EXPECT_EQ(strettoMoveStart(sent, received, move, comm, nullptr), strettoInvalidUsage);
    EXPECT_EQ(strettoGroupEnd(), strettoInvalidUsage);
    EXPECT_SUCCESS(strettoMoveDestroy(move, comm));
    EXPECT_EQ(strettoMoveDestroy(move, comm), strettoInvalidUsage);
    EXPECT_THAT(last_error(comm), HasSubstr("has no move"));
  });
}

}  // namespace
}  // namespace stretto
