// The cost model's estimate of a call, through a communicator.
#include <gmock/gmock.h>

#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

// A ring over links with known costs: p-1 messages one after the other.
TEST(Estimate, IsTheCostModelsFormulaOnTheRoute) {
  const Variable links("STRETTO_LINKS", "intra=1GB/s,100us");
  run_threads(4, [](const Communicator& world) {
    constexpr std::int64_t count = 100000;
    const OperationOptions ring{.method = Algorithm::ring};
    const Estimate gather = world.estimate({Collective::all_gather, nullptr, nullptr, count, DType::f32}, ring);
    EXPECT_NEAR(gather.overhead, 3 * 100e-6, 5e-6);
    EXPECT_NEAR(gather.seconds - gather.overhead, 3 * count * 4 / 1e9, 1e-4);
    // The difference is the cost of this machine's memory, which is much smaller.
    const Call uneven{Collective::all_gather,      nullptr, nullptr, 0, DType::f32, ReduceOp::sum, 0,
                      {count, count, count, count}};
    EXPECT_NEAR(world.estimate(uneven, ring).seconds, gather.seconds, gather.seconds * 1e-6);
    const Estimate message = world.estimate({Collective::send, nullptr, nullptr, count, DType::f32, ReduceOp::sum, 1});
    if (world.rank() != 1) {
      EXPECT_NEAR(message.overhead, 100e-6, 2e-6);
      EXPECT_NEAR(message.seconds, 100e-6 + count * 4 / 1e9, 4e-5);
    }
    // Any method has an estimate, chosen by the caller or by the library.
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::two_shot, Algorithm::recursive_doubling}) {
      const Estimate sum =
          world.estimate({Collective::all_reduce, nullptr, nullptr, count, DType::f32}, {.method = algorithm});
      EXPECT_GT(sum.overhead, 0);
      EXPECT_GT(sum.seconds, sum.overhead);
    }
  });
}

TEST(Estimate, TellsRoutesBetweenNodesFromThoseInside) {
  const Variable links("STRETTO_LINKS", "intra=10GB/s,1us;inter=1Gb/s,200us");
  const Variable nodes("STRETTO_RANKS_PER_NODE", "2");
  run_threads(4, [](const Communicator& world) {
    if (world.rank() != 0) return;
    const auto message = [&](int peer) {
      return world.estimate({Collective::recv, nullptr, nullptr, 125000, DType::u8, ReduceOp::sum, peer});
    };
    EXPECT_LT(message(1).seconds, 1e-4);
    EXPECT_NEAR(message(2).seconds, 1.2e-3, 1e-4);
    EXPECT_EQ(message(2).seconds, message(3).seconds);
  });
}

TEST(Estimate, IsTheSameOnAllRanksAlsoByARule) {
  for (const char* const algorithm : {"", "all_reduce:0-inf:ring"}) {
    const Variable rule("STRETTO_ALGO", algorithm);
    run_threads(3, [](const Communicator& world) {
      std::vector<double> all(3);
      for (const std::int64_t count : {0, 1, 1000, 1000000}) {
        const Estimate mine = world.estimate({Collective::all_reduce, nullptr, nullptr, count, DType::bf16});
        EXPECT_GE(mine.seconds, mine.overhead);
        world.all_gather(&mine.seconds, all.data(), 1, DType::f64, Stream::inline_()).wait();
        EXPECT_EQ(all, std::vector<double>(3, mine.seconds));
      }
    });
  }
}

TEST(Estimate, OfUnevenAllToAllTakesTheMeanForAll) {
  run_threads(2, [](const Communicator& world) {
    const Call even{Collective::all_to_all, nullptr, nullptr, 500, DType::f32};
    const Call uneven{Collective::all_to_all, nullptr, nullptr, 0, DType::f32, ReduceOp::sum, 0, {300, 700}, {300, 700}};
    EXPECT_EQ(world.estimate(uneven, {.method = Algorithm::pairwise}).seconds,
              world.estimate(even, {.method = Algorithm::pairwise}).seconds);
    EXPECT_THAT(sentence_of([&] {
                  world.estimate({Collective::all_gather, nullptr, nullptr, -1, DType::f32});
                }),
                testing::HasSubstr("cannot be negative"));
  });
}

}  // namespace
}  // namespace stretto
