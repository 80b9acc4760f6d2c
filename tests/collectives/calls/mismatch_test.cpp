// Calls of ranks of one host that do not match, without STRETTO_CHECK: an error, and no wrong numbers.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "../tuning_by_memory.hpp"
#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/memory.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using CallOfRank = std::function<Work(const Communicator& world, double* data, const Stream& stream)>;

CallOfRank sum_of(std::int64_t count, DType dtype, ReduceOp op = ReduceOp::sum) {
  return [=](const Communicator& world, double* data, const Stream& stream) {
    return world.all_reduce(data, data, count, dtype, op, stream);
  };
}
CallOfRank copy_of(std::int64_t count, int root) {
  return [=](const Communicator& world, double* data, const Stream& stream) {
    return world.broadcast(data, data, count, DType::f64, root, stream);
  };
}

// Every rank must throw a sentence with all `parts`. symmetric: rank 1 uses symmetric memory.
void mismatch(const Communicator& world, const CallOfRank& first, const CallOfRank& second, bool is_inline,
              const std::vector<std::string>& parts, bool symmetric = false) {
  constexpr std::size_t most = 1 << 20;
  std::vector<double> ordinary(most, 1);
  const std::shared_ptr<std::byte> heap = symmetric ? allocate(most * sizeof(double)) : nullptr;
  double* const data = symmetric && world.rank() == 1 ? reinterpret_cast<double*>(heap.get()) : ordinary.data();
  const auto sum = sum_of(3, DType::f64);
  const Stream stream = is_inline ? Stream::inline_() : Stream("mismatch");
  for (int i = 0; i < 20; ++i) sum(world, data, stream).wait();  // calls that match
  const std::string sentence = sentence_of([&] { (world.rank() == 0 ? first : second)(world, data, stream).wait(); });
  for (const std::string& part : parts) {
    require(sentence.find(part) != std::string::npos, "'{}' is not in: {}", part, sentence);
  }
}

struct Mismatch {
  CallOfRank first, second;
  std::vector<std::string> parts;
};

std::vector<Mismatch> mismatches() {
  return {
      {sum_of(1000, DType::f32), sum_of(2000, DType::f32), {"all_reduce of 1000 f32 (sum)", "all_reduce of 2000 f32 (sum)"}},
      {sum_of(1000, DType::f32), sum_of(1000, DType::f64), {"all_reduce of 1000 f32 (sum)", "all_reduce of 1000 f64 (sum)"}},
      {sum_of(4, DType::f32), sum_of(4, DType::f32, ReduceOp::max), {"(sum)", "(max)"}},
      {sum_of(4, DType::f64), sum_of(100000, DType::f64), {"all_reduce of 4 f64", "all_reduce of 100000 f64"}},
      {sum_of(200000, DType::f64), sum_of(100000, DType::f64), {"all_reduce of 200000 f64", "all_reduce of 100000 f64"}},
      {sum_of(4, DType::f64), copy_of(4, 0), {"all_reduce of 4 f64", "broadcast of 4 f64 with root 0"}},
  };
}

TEST(MismatchedCalls, OfThreadsAreNamed) {
  for (const Mismatch& each : mismatches()) {
    for (const bool is_inline : {true, false}) {
      run_threads(2, [&](const Communicator& world) { mismatch(world, each.first, each.second, is_inline, each.parts); });
    }
  }
}

// The ranks begin these methods before or after they have told each other where their buffers lie.
TEST(MismatchedCalls, OfProcessesAreNamed) {
  for (const char* table : {"all_reduce:staged", "all_reduce:0-16385:packet,16385-inf:ring"}) {
    const TemporaryDirectory directory;
    const Variable tuning("STRETTO_TUNING", directory.write("tuning.json", tuning_by_memory(table, 2)));
    for (const Mismatch& each : mismatches()) {
      for (const bool symmetric : {false, true}) {
        EXPECT_EQ(launch(2,
                         [&](const Communicator& world) {
                           mismatch(world, each.first, each.second, true, each.parts, symmetric);
                         }),
                  0);
      }
    }
  }
}

// A rank that sends something else and goes on learns it from the others.
TEST(MismatchedCalls, OfARootThatWaitsForNobodyAreErrors) {
  EXPECT_NE(launch(2,
                   [](const Communicator& world) {
                     double x = 1;
                     world.barrier(Stream::inline_()).wait();
                     world.broadcast(&x, &x, 1, world.rank() == 0 ? DType::f64 : DType::f32, 0, Stream::inline_()).wait();
                   }),
            0);
}

// One rank has made a call more, which waits for nobody. Its posts are then those of the other rank's call, one later.
TEST(MismatchedCalls, BehindOneThatWaitsForNobodyAreNamed) {
  for (const char* table : {"all_reduce:staged", "all_reduce:packet"}) {
    const TemporaryDirectory directory;
    const Variable tuning("STRETTO_TUNING", directory.write("tuning.json", tuning_by_memory(table, 2)));
    EXPECT_EQ(launch(2,
                     [](const Communicator& world) {
                       const CallOfRank one_more = [](const Communicator& ranks, double* data, const Stream& stream) {
                         ranks.broadcast(data, data, 3, DType::f64, 0, stream, {.method = Algorithm::packet}).wait();
                         return sum_of(500, DType::f64)(ranks, data, stream);
                       };
                       const CallOfRank late = [](const Communicator& ranks, double* data, const Stream& stream) {
                         std::this_thread::sleep_for(std::chrono::milliseconds(20));
                         return sum_of(500, DType::f64)(ranks, data, stream);
                       };
                       mismatch(world, one_more, late, true, {"all_reduce of 500 f64 (sum)", "behind another call"});
                     }),
              0)
        << table;
  }
}

// Over links a message of another length is an error, too.
TEST(MismatchedCalls, OverUcxAreErrors) {
#ifdef STRETTO_HAVE_UCX
  const Variable transport("STRETTO_TRANSPORT", "ucx");
  for (const auto& [one, other] : {std::pair{1000, 2000}, {2000, 1000}}) {
    EXPECT_NE(launch(2,
                     [&, counts = std::pair(one, other)](const Communicator& world) {
                       std::vector<double> data(2000);
                       sum_of(world.rank() == 0 ? counts.first : counts.second, DType::f64)(world, data.data(),
                                                                                            Stream::inline_())
                           .wait();
                     }),
              0);
  }
#else
  GTEST_SKIP() << "this build is without UCX";
#endif
}

// A timeout says how to find calls that do not match.
TEST(MismatchedCalls, ATimeoutSuggestsTheCheck) {
  run_threads(2, [](const Communicator& world) {
    world.job().set_timeout(0.5);
    double x = 1;
    if (world.rank() != 0) return;
    const std::string sentence = sentence_of([&] { world.recv(&x, 1, DType::f64, 1, Stream::inline_()).wait(); });
    EXPECT_NE(sentence.find("STRETTO_CHECK=1"), std::string::npos) << sentence;
  });
}

}  // namespace
}  // namespace stretto
