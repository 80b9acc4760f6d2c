// STRETTO_CHECK=1 names two operations of which each waits for the other, because ranks call them in different orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <thread>
#include <tuple>

#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::ContainsRegex;

Work sum(const Communicator& ranks, std::int64_t count, const Stream& stream, CallSite site = CallSite::here()) {
  const Tensor values = Tensor::zeros({count}, DType::i64);
  return ranks.all_reduce(values, ReduceOp::sum, stream, {.site = site});
}

void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// What one rank does with two communicators of all ranks; `first` is the one that its rank calls first.
using Program = std::function<void(const Communicator& first, const Communicator& second)>;

// Runs it on two ranks, of which the second calls the communicators in the other order. Returns what each rank's error says.
std::array<std::string, 2> said_by(const Program& program) {
  const Variable check("STRETTO_CHECK", "1"), timeout("STRETTO_TIMEOUT", "60");
  std::array<std::string, 2> said;
  const auto body = [&](const Communicator& world) {
    const Communicator a = world.duplicate("a"), b = world.duplicate("b");
    try {
      world.rank() == 0 ? program(a, b) : program(b, a);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  };
  sentence_of([&] { run_threads(2, body); });
  return said;
}

struct Order {
  const char* name;
  Program program;
};

class DifferentOrders : public testing::TestWithParam<Order> {};
INSTANTIATE_TEST_SUITE_P(All, DifferentOrders,
                         testing::Values(Order{"of_inline_calls",
                                               [](const Communicator& first, const Communicator& second) {
                                                 sum(first, 10, Stream::inline_());
                                                 sum(second, 10, Stream::inline_());
                                               }},
                                         Order{"in_one_stream",
                                               [](const Communicator& first, const Communicator& second) {
                                                 const Stream stream("s");
                                                 const Work earlier = sum(first, 10, stream);
                                                 const Work later = sum(second, 10, stream);
                                                 later.wait();
                                                 earlier.wait();
                                               }},
                                         Order{"of_waits",
                                               [](const Communicator& first, const Communicator& second) {
                                                 const Stream stream("s"), other("t");
                                                 sum(first, 10, stream).wait();
                                                 sum(second, 10, other).wait();
                                               }},
                                         Order{"of_groups",
                                               [](const Communicator& first, const Communicator& second) {
                                                 for (const auto* const communicator : {&first, &second}) {
                                                   OperationGroup group;
                                                   sum(*communicator, 10, Stream::inline_());
                                                   sum(*communicator, 20, Stream::inline_());
                                                   std::ignore = group.end();
                                                 }
                                               }},
                                         Order{"of_a_message_and_a_sum",
                                               [](const Communicator& first, const Communicator& second) {
                                                 std::int64_t value = 0;
                                                 const auto message = [&] {
                                                   if (first.rank() == 0)
                                                     first.send(&value, 1, DType::i64, 1, Stream::inline_()).wait();
                                                   if (first.rank() == 1)
                                                     second.recv(&value, 1, DType::i64, 0, Stream::inline_()).wait();
                                                 };
                                                 if (first.rank() == 0) message();
                                                 sum(first.rank() == 0 ? second : first, 10, Stream::inline_());
                                                 if (first.rank() == 1) message();
                                               }}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST_P(DifferentOrders, AreNamedWithRanksOperationsAndPlaces) {
  // Both operations of a group are open.
  const std::string in_a = "(all_reduce|send|recv) #[12] of 'a' \\((10|20|1) i64, at .*call_order_test.cpp:[0-9]+\\)";
  const std::string in_b = "(all_reduce|send|recv) #[12] of 'b' \\((10|20|1) i64, at .*call_order_test.cpp:[0-9]+\\)";
  const std::string one = "Rank 0 waits for rank 1 in " + in_a + ", and rank 1 waits for rank 0 in " + in_b;
  const std::string other = "Rank 1 waits for rank 0 in " + in_b + ", and rank 0 waits for rank 1 in " + in_a;
  for (const std::string& sentence : said_by(GetParam().program)) {
    EXPECT_THAT(sentence, ContainsRegex("(" + one + "|" + other + "), and neither can begin"));
  }
}

// Three communicators of two ranks each, in a circle. Runs before_first on each rank, and then one operation on each of its
// two.
std::array<std::string, 3> said_in_a_circle(bool closed, const std::function<void(int rank)>& before_first) {
  const Variable check("STRETTO_CHECK", "1"), timeout("STRETTO_TIMEOUT", "60");
  std::array<std::string, 3> said;
  const auto body = [&](const Communicator& world) {
    const int rank = world.rank();
    const Communicator ab = world.subgroup({0, 1}, "ab"), bc = world.subgroup({1, 2}, "bc"),
                       ca = world.subgroup({2, 0}, "ca");
    const Communicator& first = rank == 0 ? ab : rank == 1 ? bc : closed ? ca : bc;
    const Communicator& second = rank == 0 ? ca : rank == 1 ? ab : closed ? bc : ca;
    try {
      before_first(rank);
      sum(first, 10, Stream::inline_());
      sum(second, 10, Stream::inline_());
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
      throw;
    }
  };
  sentence_of([&] { run_threads(3, body); });
  return said;
}

TEST(ACircleOfThree, IsNamedRankByRank) {
  for (const std::string& sentence : said_in_a_circle(true, [](int) {})) {
    for (const char* const part :
         {"ank 0 waits for rank 1 in all_reduce #1 of 'ab' (10 i64, at ",
          "ank 1 waits for rank 2 in all_reduce #1 of 'bc' (10 i64, at ",
          "ank 2 waits for rank 0 in all_reduce #1 of 'ca' (10 i64, at ",
          "and none can begin the operation of the rank that waits for it before its own has ended"}) {
      EXPECT_THAT(sentence, testing::HasSubstr(part));
    }
  }
}

// Controls: the same orders, of which none can deadlock, with waits that are long enough for a question.

constexpr double long_enough = 2.5;

void expect_no_complaint(const Program& program) {
  for (const std::string& sentence : said_by(program)) EXPECT_EQ(sentence, "");
}

TEST(OtherOrders, InTwoStreamsAreAllowed) {
  expect_no_complaint([](const Communicator& first, const Communicator& second) {
    const Stream stream("s"), other("t");
    const Work earlier = sum(first, 10, stream);
    rest(long_enough);
    const Work later = sum(second, 10, other);
    later.wait();
    earlier.wait();
  });
}

TEST(OtherOrders, WithinAGroupAreAllowed) {
  expect_no_complaint([](const Communicator& first, const Communicator& second) {
    if (first.rank() == 1) rest(long_enough);
    OperationGroup group;
    sum(first, 10, Stream::inline_());
    sum(second, 10, Stream::inline_());
    std::ignore = group.end();
  });
}

TEST(OtherOrders, OfTwoThreadsAreAllowed) {
  expect_no_complaint([](const Communicator& first, const Communicator& second) {
    const bool is_rank_0 = first.rank() == 0;
    std::thread beside([&, b = is_rank_0 ? second : first] {
      if (is_rank_0) rest(long_enough);
      sum(b, 10, Stream::inline_());
    });
    if (!is_rank_0) rest(long_enough);
    std::string said = sentence_of([&] { sum(is_rank_0 ? first : second, 10, Stream::inline_()); });
    beside.join();
    EXPECT_EQ(said, "");
  });
}

TEST(OtherOrders, ThatEndBehindASlowRankAreNoCircle) {
  const auto third_is_slow = [](int rank) {
    if (rank == 2) rest(long_enough);
  };
  for (const std::string& sentence : said_in_a_circle(false, third_is_slow)) EXPECT_EQ(sentence, "");
}

TEST(OtherOrders, OfASlowRankAreNoDifference) {
  expect_no_complaint([](const Communicator& first, const Communicator& second) {
    const Communicator& a = first.rank() == 0 ? first : second;
    const Communicator& b = first.rank() == 0 ? second : first;
    for (int i = 0; i < 2; ++i) {
      if (first.rank() == i) rest(long_enough);
      sum(a, 10, Stream::inline_());
      sum(b, 10, Stream::inline_());
    }
  });
}

}  // namespace
}  // namespace stretto
