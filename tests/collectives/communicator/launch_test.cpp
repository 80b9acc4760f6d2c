// Ranks that launch() starts as processes.
#include "stretto/launch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "core/fail.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

int sum_over(int ranks, double expected) {
  return launch(ranks, [&](const Communicator& world) {
    double sum = world.rank() + 1;
    world.all_reduce(&sum, &sum, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
    require(sum == expected, "The sum is {}, not {}.", sum, expected);
    world.barrier(Stream::inline_()).wait();
  });
}

TEST(Launch, ConnectsManyRanks) {
  EXPECT_EQ(sum_over(64, 64 * 65 / 2), 0);
  EXPECT_NE(sum_over(2, 4), 0);  // the control
}

// Rank 1 receives its whole message before rank 2 receives any: rank 1's acknowledgements must not let rank 0 send more to
// rank 2.
TEST(Launch, UcxKeepsTheWindowsOfReceiversApart) {
#ifdef STRETTO_HAVE_UCX
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  const Variable timeout("STRETTO_TIMEOUT", "60");
  constexpr std::int64_t bytes = 32'000'000;
  EXPECT_EQ(launch(3,
                   [](const Communicator& world) {
                     const int rank = world.rank();
                     if (rank == 0) {
                       const std::vector<std::int8_t> first(bytes, 1);
                       const std::vector<std::int8_t> second(bytes, 2);
                       OperationGroup both;
                       std::ignore = world.send(first.data(), bytes, DType::i8, 1, Stream::inline_());
                       std::ignore = world.send(second.data(), bytes, DType::i8, 2, Stream::inline_());
                       std::ignore = both.end();
                       return;
                     }
                     std::vector<std::int8_t> data(bytes);
                     std::int8_t go = 0;
                     if (rank == 2) world.recv(&go, 1, DType::i8, 1, Stream::inline_()).wait();
                     world.recv(data.data(), bytes, DType::i8, 0, Stream::inline_()).wait();
                     if (rank == 1) world.send(&go, 1, DType::i8, 2, Stream::inline_()).wait();
                     require(data == std::vector<std::int8_t>(bytes, static_cast<std::int8_t>(rank)),
                             "Rank {} has received something else.", rank);
                   }),
            0);
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

}  // namespace
}  // namespace stretto
