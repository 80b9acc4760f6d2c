// The choice of the route to each peer, and collectives over UCX.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"
#include "transport/network.hpp"

namespace stretto {
namespace {

std::vector<std::string> routes_between_two() {
  const auto jobs = make_local_jobs(2);
  std::vector<std::string> routes(2);
  const auto look = [&](int rank) {
    Network network(*jobs[rank]);
    routes[rank] = network.route_name(1 - rank);
    jobs[rank]->leave();
  };
  std::thread other(look, 1);
  look(0);
  other.join();
  return routes;
}

TEST(Routes, AreSharedMemoryInsideAHost) {
  for (const char* wanted : {"auto", "shm"}) {
    const Variable transport("STRETTO_TRANSPORT", wanted);
    EXPECT_THAT(routes_between_two(), testing::Each("shm")) << wanted;
  }
}

#ifdef STRETTO_HAVE_UCX

TEST(Routes, AreUcxWhereItIsWanted) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_THAT(routes_between_two(), testing::Each("ucx"));
}

// Small messages, and large ones that travel in several segments.
TEST(Routes, UcxCarriesCollectives) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  run_threads(3, [](const Communicator& world) {
    for (const std::int64_t count : {1, 1000, 700001}) {
      const auto value = [](int rank, std::int64_t i) { return static_cast<double>((i + rank) % 5); };
      const Tensor data({count}, DType::f32);
      for (std::int64_t i = 0; i < count; ++i) data.set(i, value(world.rank(), i));
      world.all_reduce(data, ReduceOp::sum, Stream::inline_()).wait();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < count; ++i) wrong += data.at(i) != value(0, i) + value(1, i) + value(2, i);
      EXPECT_EQ(wrong, 0) << count;
      world.broadcast(data, 2, Stream::inline_()).wait();
      const Tensor shares({3 * count}, DType::f32);
      world.all_gather(data.raw(), shares.raw(), count, DType::f32, Stream::inline_()).wait();
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(shares.at(rank * count), data.at(0));
    }
    world.barrier(Stream::inline_()).wait();
  });
}

TEST(Routes, UcxTellsTheOthersOfARankThatGivesUp) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  const std::string sentence = sentence_of([] {
    run_threads(2, [](const Communicator& world) {
      const Tensor data = Tensor::zeros({1000000}, DType::f32);
      world.all_reduce(data, ReduceOp::sum, Stream::inline_()).wait();
      if (world.rank() == 1) throw std::runtime_error("no paper left");
      world.all_reduce(data, ReduceOp::sum, Stream::inline_()).wait();
    });
  });
  EXPECT_EQ(sentence, "no paper left");
}

#else

TEST(Routes, SayThatTheBuildIsWithoutUcx) {
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  EXPECT_THAT(sentence_of([] { run_threads(2, [](const Communicator&) {}); }), testing::HasSubstr("STRETTO_WITH_UCX=ON"));
  GTEST_SKIP() << "this build is without UCX, so its collectives were not tried";
}

#endif

}  // namespace
}  // namespace stretto
