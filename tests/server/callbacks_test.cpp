#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/server.hpp"

namespace stretto {
namespace {

constexpr std::int64_t counts = 1000;

ServerSet counts_of(const Communicator& world, const ServerSet::Options& options = {.servers = 1}) {
  return {world,
          {{"counts", counts, DType::i64, {}, server_functions::sum()},
           {.name = "rows",
            .dtype = DType::i64,
            .initial = {},
            .update = server_functions::sum(),
            .width = ServedTable::any_length}},
          options};
}

Tensor all(std::int64_t value, std::int64_t elements = counts) {
  Tensor tensor({elements}, DType::i64);
  std::fill_n(tensor.data<std::int64_t>(), elements, value);
  return tensor;
}

// A worker that never waits: each pull's function begins the next push.
TEST(Callbacks, BeginWhatComesNext) {
  run_threads(3, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    const Tensor ones = all(1), found = all(0);
    std::vector<std::int64_t> seen;
    const auto begin = [&](const auto& again) -> void {
      set.when_done(set.push_pull(0, ones, found), [&, again](const std::exception_ptr& refused) {
        EXPECT_FALSE(refused);
        seen.push_back(found.data<std::int64_t>()[counts - 1]);
        if (seen.size() < 5) again(again);
      });
    };
    begin(begin);
    while (seen.size() < 5) set.poll();
    EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 4, 6, 8, 10}));
    set.leave();
    EXPECT_EQ(seen.size(), 5U) << "once each";
  });
}

TEST(Callbacks, ComeWithWaitAndLeave) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    const Tensor ones = all(1), found = all(0);
    std::string called;
    const auto note = [&](char letter) { return [&called, letter](const std::exception_ptr&) { called += letter; }; };
    const ServerSet::Pending pull = set.push_pull(0, ones, found);
    set.when_done(pull, note('a'));
    EXPECT_THROW(set.when_done(pull, note('x')), Error) << "two";
    EXPECT_THROW(set.when_done(pull, {}), Error);
    set.wait(pull);
    EXPECT_EQ(called, "a");
    set.wait(pull);
    set.when_done(pull, note('b'));
    set.poll();
    EXPECT_EQ(called, "ab") << "of one that is done";
    set.when_done(set.push(0, ones), note('c'));
    set.when_done(set.pull(0, found), note('d'));
    set.leave();
    std::ranges::sort(called);
    EXPECT_EQ(called, "abcd");
  });
}

TEST(Callbacks, MayPushWhileTheWorkerLeaves) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    const Tensor ones = all(1), found = all(0);
    int called = 0;
    const auto begin = [&](const auto& again) -> void {
      set.when_done(set.push_pull(0, ones, found), [&, again](const std::exception_ptr&) {
        if (++called < 4) again(again);
      });
    };
    begin(begin);
    set.leave();
    EXPECT_EQ(called, 4);
    EXPECT_EQ(found.data<std::int64_t>()[0], 4) << "all were done before the goodbye";
  });
}

// One call of poll() ends, whatever the functions begin. leave() calls them all.
TEST(Callbacks, OfWhatFunctionsBeginAreCalledLater) {
  for (const bool pushes : {true, false}) {
    run_threads(2, [&](const Communicator& world) {
      ServerSet set = counts_of(world);
      if (set.is_server()) return set.serve();
      constexpr int times = 10;
      const Tensor ones = all(1);
      int called = 0;
      const auto begin = [&](const auto& again) -> void {
        set.when_done(pushes ? set.push(0, ones) : ServerSet::Pending(), [&, again](const std::exception_ptr&) {
          if (++called < times) again(again);
        });
      };
      begin(begin);
      for (int last = 0; called < times / 2; last = called) {
        set.poll();
        EXPECT_LE(called - last, 1);
      }
      set.leave();
      EXPECT_EQ(called, times);
    });
  }
}

// Of a refusal the caller is told once, so a function that throws must not hide it.
TEST(Callbacks, ThatThrowHideNoRefusal) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    set.wait(set.push(1, {7}, all(1, 3), {3}));
    const ServerSet::Pending wrong = set.push(1, {7}, all(1, 2), {2});
    set.when_done(wrong, [](const std::exception_ptr&) { throw std::runtime_error("The function fails."); });
    EXPECT_THROW(set.wait(wrong), Error);
    set.leave();
  });
}

// Neither a push nor a pull calls a function: one that throws would leave the caller without what it has begun.
TEST(Callbacks, AreNotCalledByPushesAndPulls) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    const Tensor ones = all(1), found = all(0);
    bool called = false;
    set.when_done(ServerSet::Pending(), [&](const std::exception_ptr&) { called = true; });
    const ServerSet::Pending push = set.push(0, ones), pull = set.pull(0, found);
    EXPECT_FALSE(called);
    set.wait(push);
    EXPECT_TRUE(called);
    set.wait(pull);
    set.leave();
  });
}

TEST(Callbacks, GetRefusalsAndMayThrow) {
  run_threads(2, [](const Communicator& world) {
    ServerSet set = counts_of(world);
    if (set.is_server()) return set.serve();
    set.wait(set.push(1, {7}, all(1, 3), {3}));
    std::string sentence;
    set.when_done(set.push(1, {7}, all(1, 2), {2}), [&](const std::exception_ptr& refused) {
      try {
        std::rethrow_exception(refused);
      } catch (const Error& error) {
        sentence = error.what();
      }
    });
    while (sentence.empty()) set.poll();
    EXPECT_NE(sentence.find("with 2 elements, and it has 3"), std::string::npos) << sentence;
    const ServerSet::Pending right = set.push(1, {7}, all(1, 3), {3});
    set.when_done(right, [](const std::exception_ptr& refused) {
      EXPECT_FALSE(refused);
      throw std::runtime_error("The function fails.");
    });
    EXPECT_THROW(set.wait(right), std::runtime_error);
    EXPECT_NO_THROW(set.wait(right));
    const Tensor row = all(0, 3);
    set.wait(set.pull(1, {7}, row, {3}));
    EXPECT_EQ(row.data<std::int64_t>()[0], 2) << "the set goes on";
    set.leave();
  });
}

// With copies the calls are repeated behind a loss, and the functions are not.
TEST(Callbacks, AreCalledOnceBehindALoss) {
  std::latch made(4);
  run_threads(4, [&](const Communicator& world) {
    ServerSet set = counts_of(world, {.servers = 2, .copies = 1});
    made.arrive_and_wait();
    if (world.rank() == 3) return world.job().abort("it is killed.");
    if (set.is_server()) return set.serve();
    const Tensor ones = all(1), found = all(0);
    int called = 0;
    for (int step = 1; step <= 20; ++step) {
      set.when_done(set.push_pull(0, ones, found), [&](const std::exception_ptr&) { ++called; });
      while (called < step) set.poll();
      EXPECT_EQ(found.data<std::int64_t>()[0], 2 * step);
    }
    set.leave();
    EXPECT_EQ(called, 20);
  });
}

}  // namespace
}  // namespace stretto
