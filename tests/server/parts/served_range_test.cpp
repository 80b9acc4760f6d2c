#include "server/parts/served_range.hpp"

#include <gmock/gmock.h>

#include "support/error.hpp"

namespace stretto {
namespace {

KeyedRows number(double value) { return {{}, Tensor::of<double>({value})}; }

ServedRange part_of(int workers, Consistency consistency) {
  return {Tensor::zeros({1}, DType::f64), workers, consistency, server_functions::sum()};
}

std::vector<std::pair<std::uint64_t, double>> answered(ServedRange& part) {
  part.apply_below(part.end());
  std::vector<std::pair<std::uint64_t, double>> result;
  for (const ServedPart::Answer& answer : part.answers()) result.emplace_back(answer.pull.request, answer.values.at(0));
  return result;
}

using Answers = std::vector<std::pair<std::uint64_t, double>>;

TEST(ServedRange, SequentialPullsWaitForAllPushesBefore) {
  ServedRange part = part_of(2, Consistency::sequential());
  part.pull({0, 0, 1});
  EXPECT_EQ(answered(part), (Answers{{1, 0}}));
  part.push(0, 0, number(1));
  part.pull({0, 1, 2});
  EXPECT_EQ(answered(part), Answers{});
  part.push(1, 0, number(10));
  EXPECT_EQ(answered(part), (Answers{{2, 11}}));
  EXPECT_EQ(answered(part), Answers{}) << "once";
}

TEST(ServedRange, BoundedPullsMayBeSoFarBehind) {
  ServedRange part = part_of(2, Consistency::bounded(1));
  part.push(0, 0, number(1));
  part.pull({0, 1, 1});
  EXPECT_EQ(answered(part), (Answers{{1, 0}}));
  part.push(0, 1, number(2));
  part.pull({0, 2, 2});
  EXPECT_EQ(answered(part), Answers{}) << "two clocks behind";
  part.push(1, 0, number(10));
  EXPECT_EQ(answered(part), (Answers{{2, 11}}));
}

TEST(ServedRange, ExactPullsGetThatVersionAndKeepNoOthers) {
  ServedRange part = part_of(2, Consistency::exact(2));
  for (int clock = 0; clock < 6; ++clock) {
    for (int worker = 0; worker < 2; ++worker) part.push(worker, clock, number(1));
    part.pull({0, clock + 1, static_cast<std::uint64_t>(clock)});
    EXPECT_EQ(answered(part), (Answers{{clock, 2.0 * std::max(0, clock + 1 - 2)}}));
    EXPECT_LE(part.versions_kept(), 3U);
  }
}

TEST(ServedRange, EventualPullsNeverWait) {
  ServedRange part = part_of(3, Consistency::eventual());
  part.push(1, 0, number(5));
  part.push(1, 1, number(6));
  part.pull({0, 0, 1});
  EXPECT_EQ(answered(part), (Answers{{1, 11}}));
}

// Those who meet behind the loss of a worker read the same, whoever asks first.
TEST(ServedRange, SettledPullsHaveAllThatALostWorkerHasPushed) {
  ServedRange part = part_of(2, Consistency::eventual());
  part.push(0, 0, number(5));
  part.push(1, 0, number(6));
  part.lose(1);
  part.apply_below(1);
  part.pull({0, 1, 1, {}, true});
  EXPECT_TRUE(part.answers().empty());
  part.pull({0, 1, 2});
  EXPECT_EQ(part.answers().size(), 1U) << "the control";
  part.apply_below(2);
  EXPECT_EQ(part.answers().front().values.at(0), 11);
}

// With a delay, too: with copies, pushes that have come are not applied yet.
TEST(ServedRange, SettledPullsHaveTheWorkersOwnPushes) {
  ServedRange part = part_of(2, Consistency::eventual());
  part.push(0, 0, number(5));
  part.pull({1, 0, 1, {}, true});
  EXPECT_EQ(part.answers().size(), 1U) << "the control: of another worker";
  part.pull({0, 0, 2, {}, true});
  EXPECT_TRUE(part.answers().empty());
  part.apply_below(1);
  EXPECT_EQ(part.answers().front().values.at(0), 5);
}

// What has been answered may still be on its way when the next update comes.
TEST(ServedRange, AnsweredValuesDoNotChange) {
  for (const Consistency consistency : {Consistency::sequential(), Consistency::eventual(), Consistency::exact(1)}) {
    ServedRange part = part_of(1, consistency);
    part.push(0, 0, number(1));
    part.pull({0, 1, 1});
    part.apply_below(part.end());
    const Tensor values = part.answers().front().values;
    const double before = values.at(0);
    part.push(0, 1, number(1));
    part.apply_below(part.end());
    EXPECT_EQ(values.at(0), before);
  }
}

// In floating point, another order has other bits: 1e16 + 1 - 1e16.
TEST(ServedRange, AddsInTheOrderOfWorkers) {
  for (const auto& order : {std::vector{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    ServedRange part = part_of(3, Consistency::sequential());
    const double pushed[] = {1e16, 1, -1e16};
    for (const int worker : order) part.push(worker, 0, number(pushed[worker]));
    part.pull({0, 1, 1});
    EXPECT_EQ(answered(part), (Answers{{1, (1e16 + 1) - 1e16}}));
  }
}

TEST(ServedRange, RefusesPushesOutOfTurnAndOfOtherSizes) {
  ServedRange part = part_of(1, Consistency::sequential());
  EXPECT_THAT(sentence_of([&] { part.push(0, 1, number(1)); }), testing::HasSubstr("pushes clock 1 behind -1"));
  EXPECT_THAT(sentence_of([&] {
                part.push(0, 0, {{}, Tensor::zeros({2}, DType::f64)});
              }),
              testing::HasSubstr("2 elements of f64"));
}

// After a loss workers push again what some server may not have.
TEST(ServedRange, IgnoresPushesThatComeAgain) {
  ServedRange part = part_of(2, Consistency::sequential());
  for (int time = 0; time < 3; ++time) {
    part.push(0, 0, number(1));
    part.push(1, 0, number(10));
  }
  part.push(1, 1, number(100));
  part.push(1, 1, number(100));
  part.push(0, 1, number(1000));
  part.pull({0, 2, 1});
  EXPECT_EQ(answered(part), (Answers{{1, 1111}}));
}

}  // namespace
}  // namespace stretto
