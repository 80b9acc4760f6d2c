// STRETTO_CHECK=1 names a communicator that two threads call at the same time.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "stretto/error.hpp"
#include "stretto/launch.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

// Neither call can end, since rank 1 never joins: so they overlap, and the second is refused.
TEST(TwoThreads, OfOneCommunicatorAreNamed) {
  const Variable check("STRETTO_CHECK", "1");
  std::array<std::string, 2> sentences;
  const auto body = [&](const Communicator& world) {
    if (world.rank() == 1) {
      while (true) {
        world.job().check_ranks();  // throws when rank 0 has given up
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    std::array<std::thread, 2> threads;
    for (std::size_t i = 0; i < threads.size(); ++i) {
      threads[i] = std::thread([&, i] {
        try {
          float x = 1;
          world.all_reduce(&x, &x, 1, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
        } catch (const Error& error) {
          sentences[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  EXPECT_THROW(run_threads(2, body), Error);
  const std::string both = sentences[0] + sentences[1];
  EXPECT_NE(both.find("Two threads of rank 0 call communicator 'world' at the same time"), std::string::npos) << both;
}

}  // namespace
}  // namespace stretto
