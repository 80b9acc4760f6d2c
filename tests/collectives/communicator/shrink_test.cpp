// The ranks that are left go on in a communicator of their own. Ranks are threads, and processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <numeric>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "stretto/launch.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/transports.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

Communicator begin_to_work(const Communicator& world) { return world.split(world.rank() % 2, 0, "half"); }

// Operations until one fails. Returns the sentence. A rank that is to be lost from here on, and not in what the others did
// before, calls begin_to_work() first: it leaves the split when all have entered it, and so have left what was before.
std::string work_until_a_loss(const Communicator& world) {
  return sentence_of([&] {
    const Communicator half = begin_to_work(world);
    std::vector<float> values(20000, 1);
    while (true) {
      world.all_reduce(values.data(), values.data(), 1, DType::f32, ReduceOp::max, Stream::inline_()).wait();
      half.all_reduce(values.data(), values.data(), 20000, DType::f32, ReduceOp::max, Stream::inline_()).wait();
    }
  });
}

// Throws if the members are not those ranks of the larger communicator, or cannot communicate.
void check_members(const Communicator& members, int old_rank, const std::vector<std::int64_t>& expected) {
  const std::int64_t mine = old_rank;
  std::vector<std::int64_t> all(static_cast<std::size_t>(members.size()));
  members.all_gather(&mine, all.data(), 1, DType::i64, Stream::inline_()).wait();
  ensure(all == expected, "These are not the survivors.");
  ensure(members.job_ranks().back() == members.size() - 1, "The ranks are not numbered from 0.");
  const Communicator again = members.duplicate("again");
  const Stream stream("work");
  for (const std::int64_t count : {1, 1000, 300000}) {
    std::vector<std::int64_t> values(static_cast<std::size_t>(count), old_rank);
    again.all_reduce(values.data(), values.data(), count, DType::i64, ReduceOp::sum, stream).wait();
  }
  std::int64_t sum = old_rank;
  again.all_reduce(&sum, &sum, 1, DType::i64, ReduceOp::sum, Stream::inline_()).wait();
  ensure(sum == std::accumulate(expected.begin(), expected.end(), std::int64_t{0}), "The sum is wrong.");
}

TEST(Shrink, RanksThatAreThreadsGoOnAgainAndAgain) {
  run_threads(5, [](const Communicator& world) {
    if (world.rank() == 2) return world.job().abort("it is lost.");
    EXPECT_THAT(work_until_a_loss(world), HasSubstr("it is lost."));
    const Communicator four = world.job().shrink();
    check_members(four, world.rank(), {0, 1, 3, 4});
    EXPECT_THROW(world.barrier(Stream::inline_()), Error);
    if (four.rank() == 1) {
      begin_to_work(four);
      return four.job().abort("it is lost, too.");
    }
    EXPECT_THAT(work_until_a_loss(four), HasSubstr("it is lost, too."));
    const Communicator three = four.job().shrink();
    check_members(three, world.rank(), {0, 3, 4});
    EXPECT_THAT(sentence_of([&] { four.job().shrink(); }), HasSubstr("the communicator that shrink() returned"));
  });
}

// Takes part in the beginning of world.job().shrink() only.
std::unique_ptr<JobControl> begin_to_shrink(const Communicator& world) {
  return Communicator::Group::of(world).context().job().shrink({}, world.job().timeout()).job;
}

TEST(Shrink, LeavesThoseBehindThatAreLostMeanwhile) {
  run_threads(6, [](const Communicator& world) {
    if (world.rank() == 2) return world.job().abort("it is lost.");
    EXPECT_THAT(work_until_a_loss(world), HasSubstr("it is lost."));
    if (world.rank() == 1) return void(begin_to_shrink(world));
    if (world.rank() == 4) {  // is lost the next time
      const std::unique_ptr<JobControl> five = begin_to_shrink(world);
      EXPECT_THROW(five->exchange({}), Error);
      return void(five->shrink({}, world.job().timeout()));
    }
    std::vector<int> survivors;
    check_members(world.job().shrink({}, &survivors), world.rank(), {0, 3, 5});
    EXPECT_EQ(survivors, (std::vector<int>{0, 3, 5}));
  });
}

TEST(Shrink, NumbersRanksAsTheJobDoesWhateverCommunicatorItIsCalledThrough) {
  run_threads(4, [](const Communicator& world) {
    const Communicator turned = world.split(0, -world.rank(), "turned");
    if (world.rank() == 2) return;
    std::vector<int> survivors;
    check_members(turned.job().shrink({2}, &survivors), world.rank(), {0, 1, 3});
    EXPECT_EQ(survivors, (std::vector<int>{0, 1, 3}));
  });
}

TEST(Shrink, LeavesThoseBehindWhomARankNames) {
  run_threads(4, [](const Communicator& world) {
    if (world.rank() % 2 == 1) {
      EXPECT_THAT(work_until_a_loss(world), HasSubstr("gone on without"));
      return;
    }
    check_members(world.job().shrink({1, 3}), world.rank(), {0, 2});
  });
}

TEST(Shrink, RefusesWhatItCannotDo) {
  run_threads(3, [](const Communicator& world) {
    EXPECT_THAT(sentence_of([&] { world.job().shrink({3}); }), HasSubstr("rank 3"));
    EXPECT_THAT(sentence_of([&] { world.job().shrink({world.rank()}); }), HasSubstr("cannot name"));
    if (world.rank() != 0) {
      EXPECT_THAT(sentence_of([&] { world.job().shrink({0}); }), HasSubstr("its rank 0"));
    }
  });
}

class ShrinkProcesses : public OverTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, ShrinkProcesses, testing::ValuesIn(transports_here()));

TEST_P(ShrinkProcesses, GoOnWithoutThoseThatWereKilled) {
  LaunchOptions options;
  options.survivors_go_on = true;
  EXPECT_EQ(launch(
                5,
                [](const Communicator& world) {
                  if (world.rank() == 1 || world.rank() == 4) raise(SIGKILL);  // both at once
                  ensure(!work_until_a_loss(world).empty(), "Nobody was lost.");
                  const Communicator three = world.job().shrink();
                  check_members(three, world.rank(), {0, 2, 3});
                  if (three.rank() == 1) {
                    begin_to_work(three);
                    raise(SIGKILL);
                  }
                  ensure(!work_until_a_loss(three).empty(), "Nobody was lost.");
                  const Communicator two = three.job().shrink();
                  check_members(two, world.rank(), {0, 3});
                  if (two.rank() == 1) return;  // is left behind, and ends
                  check_members(two.job().shrink({1}), 0, {0});
                },
                options),
            0);
}

TEST_P(ShrinkProcesses, GoOnWithoutThoseThatAreKilledMeanwhile) {
  LaunchOptions options;
  options.survivors_go_on = true;
  EXPECT_EQ(launch(
                6,
                [](const Communicator& world) {
                  if (world.rank() == 1) raise(SIGKILL);
                  ensure(!work_until_a_loss(world).empty(), "Nobody was lost.");
                  if (world.rank() == 3) {
                    const std::unique_ptr<JobControl> job = begin_to_shrink(world);
                    raise(SIGKILL);
                  }
                  if (world.rank() == 4) {  // fails behind the first exchange of a smaller job
                    const Variable nodes("STRETTO_RANKS_PER_NODE", "1,1");
                    ensure(sentence_of([&] { world.job().shrink(); }).find("STRETTO_RANKS_PER_NODE") != std::string::npos,
                           "It has not failed.");
                    raise(SIGKILL);
                  }
                  std::vector<int> survivors;
                  check_members(world.job().shrink({}, &survivors), world.rank(), {0, 2, 5});
                  ensure(survivors == std::vector<int>{0, 2, 5}, "These are not the survivors.");
                },
                options),
            0);
}

TEST_P(ShrinkProcesses, DoNotGoOnWithoutRank0) {
  EXPECT_EQ(launch(3,
                   [](const Communicator& world) {
                     if (world.rank() == 0) raise(SIGKILL);
                     ensure(!work_until_a_loss(world).empty(), "Nobody was lost.");
                     const std::string said = sentence_of([&] { world.job().shrink(); });
                     if (said.find("rank 0, through which the ranks meet, and which is lost") == std::string::npos)
                       raise(SIGABRT);
                   }),
            128 + SIGKILL);
}

}  // namespace
}  // namespace stretto
