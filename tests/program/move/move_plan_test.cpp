#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "program/move/box.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

std::vector<int> range(int first, int count) {
  std::vector<int> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

Division division(int kind, const Shape& shape, const std::vector<int>& ranks) {
  return kind == 2 ? Division::replicated(shape, ranks) : Division::along(static_cast<std::size_t>(kind), shape, ranks);
}

// Elements that a rank has by one division and not by another, by their numbers.
std::int64_t lacking(const MovedTensor& tensor, int rank) {
  const auto elements = [&](const Division& division) {
    std::set<std::int64_t> result;
    for (std::size_t i = 0; i < division.ranks.size(); ++i) {
      if (division.ranks[i] != rank) continue;
      for (const Box& box : division.boxes[i]) {
        for (const Run& run : runs(whole(tensor.shape), box)) {
          for (std::int64_t e = 0; e < run.count; ++e) result.insert(run.offset + e);
        }
      }
    }
    return result;
  };
  const std::set<std::int64_t> from = elements(tensor.from), to = elements(tensor.to);
  return std::count_if(to.begin(), to.end(), [&](std::int64_t element) { return from.count(element) == 0; });
}

TEST(MovePlan, BringsEachRankWhatItLacksOnce) {
  const Shape shape{7, 5};
  for (int from_kind = 0; from_kind < 3; ++from_kind) {
    for (int to_kind = 0; to_kind < 3; ++to_kind) {
      for (int from = 1; from <= 4; ++from) {
        for (int to = 1; to <= 4; ++to) {
          for (const int first : {0, 2, from}) {  // the same ranks, overlapping, disjoint
            const int ranks = std::max(from, first + to);
            const MovedTensor tensor{DType::f32, shape, division(from_kind, shape, range(0, from)),
                                     division(to_kind, shape, range(first, to))};
            const MovePlan plan = plan_move({tensor}, ranks);
            EXPECT_EQ(verify(plan).value_or(""), "") << plan.to_string();
            for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(plan.bytes_into(rank), 4 * lacking(tensor, rank));
          }
        }
      }
    }
  }
}

TEST(MovePlan, IsProvedForSixtyFourRanks) {
  const Shape shape{640, 1000};
  for (int from_kind = 0; from_kind < 3; ++from_kind) {
    for (int to_kind = 0; to_kind < 3; ++to_kind) {
      std::vector<int> nodes(64);
      for (int rank = 0; rank < 64; ++rank) nodes[static_cast<std::size_t>(rank)] = rank / 8;
      const MovePlan plan = plan_move(
          {{DType::bf16, shape, division(from_kind, shape, range(0, 32)), division(to_kind, shape, range(20, 44))}}, 64,
          nodes);
      EXPECT_EQ(verify(plan).value_or(""), "");
    }
  }
}

// The tensor leaves the source once, and enters each node once, whatever the number of targets there.
TEST(MovePlan, CrossesBetweenNodesOnce) {
  const Shape shape{64, 64};
  const std::vector<int> nodes = {0, 0, 1, 1, 1, 2, 2};
  const MovePlan plan = plan_move(
      {{DType::f32, shape, Division::replicated(shape, {0, 1}), Division::replicated(shape, {2, 3, 4, 5, 6})}}, 7, nodes);
  EXPECT_EQ(verify(plan).value_or(""), "");
  const std::int64_t bytes = 64 * 64 * 4;
  EXPECT_EQ(plan.bytes_out_of(0) + plan.bytes_out_of(1), bytes);
  EXPECT_EQ(plan.bytes_between_nodes(nodes), 2 * bytes);
  const MovePlan flat =
      plan_move({{DType::f32, shape, Division::replicated(shape, {0, 1}), Division::replicated(shape, {2, 3, 4, 5, 6})}}, 7);
  EXPECT_GT(flat.bytes_between_nodes(nodes), 2 * bytes) << "the control: planned without nodes";
}

TEST(MovePlan, HoldersOfCopiesShareTheSending) {
  const Shape shape{1024, 256};
  const MovePlan plan =
      plan_move({{DType::f32, shape, Division::replicated(shape, {0, 1, 2}), Division::replicated(shape, {3})}}, 4);
  for (int rank = 0; rank < 3; ++rank) EXPECT_NEAR(plan.bytes_out_of(rank), 1024 * 256 * 4 / 3.0, 1024);
  const MovePlan near = plan_move(
      {{DType::f32, shape, Division::replicated(shape, {0, 1, 2}), Division::replicated(shape, {3})}}, 4, {0, 0, 1, 1});
  EXPECT_EQ(near.bytes_out_of(2), 1024 * 256 * 4) << "the one on the target's node";
}

TEST(MovePlan, KeepsBuffersWithinTheirBound) {
  const Shape shape{1000, 333};
  const std::vector<MovedTensor> tensors = {
      {DType::f32, shape, Division::along(0, shape, range(0, 4)), Division::along(1, shape, range(0, 4))},
      {DType::f64, shape, Division::along(1, shape, range(0, 2)), Division::replicated(shape, range(2, 2))}};
  const MovePlan plan = plan_move(tensors, 4, {}, 100000);
  EXPECT_EQ(verify(plan).value_or(""), "");
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_LE(plan.buffer_bytes(rank), 100000);
    EXPECT_GT(plan_move(tensors, 4).buffer_bytes(rank), 100000) << "the control";
    EXPECT_EQ(plan.bytes_into(rank), plan_move(tensors, 4).bytes_into(rank));
  }
}

TEST(MovePlan, CutsRowsThatAreTooLongForTheBuffers) {
  const Shape shape{3, 10000};  // 40,000 bytes a row, of which two do not fit
  const MovedTensor tensor{DType::f32, shape, Division::replicated(shape, {0}), Division::replicated(shape, {1})};
  const MovePlan plan = plan_move({tensor}, 2, {}, 64 << 10);
  EXPECT_EQ(verify(plan).value_or(""), "");
  EXPECT_LE(plan.buffer_bytes(1), 64 << 10);
  EXPECT_EQ(plan.bytes_into(1), 120000);
}

TEST(MovePlan, ProofRefusesWhatIsWrong) {
  const Shape shape{6, 6};
  const MovePlan good =
      plan_move({{DType::f32, shape, Division::along(0, shape, {0, 1}), Division::replicated(shape, {1, 2, 3})}}, 4);
  ASSERT_FALSE(verify(good));
  ASSERT_EQ(good.phases.size(), 2u);
  std::mt19937 draw(3);
  const auto sentence = [&](auto change) {
    MovePlan plan = good;
    change(plan);
    return verify(plan).value_or("nothing");
  };
  using testing::HasSubstr;
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[0].pop_back(); }), HasSubstr("does not have all of it"));
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[1].pop_back(); }), HasSubstr("of the 36 elements"));
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[1].push_back(plan.phases[1].front()); }), HasSubstr("twice"));
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[0].front().source ^= 1; }), HasSubstr("does not have all of it"));
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[0].front().target = 0; }), HasSubstr("in none of its boxes"));
  EXPECT_THAT(sentence([](MovePlan& plan) { std::swap(plan.phases[0], plan.phases[1]); }),
              HasSubstr("does not have all of it"));
  EXPECT_THAT(sentence([](MovePlan& plan) { plan.phases[0].front().tensor = 1; }), HasSubstr("names tensor 1 of 1"));
}

TEST(MovePlan, SaysWhatItCannotPlan) {
  const Shape shape{4, 4};
  const auto sentence = [&](Division from, Division to) {
    return sentence_of([&] { plan_move({{DType::f32, shape, std::move(from), std::move(to)}}, 2); });
  };
  using testing::HasSubstr;
  EXPECT_THAT(sentence({{0}, {{{{0, 0}, {3, 4}}}}}, Division::replicated(shape, {1})),
              HasSubstr("no rank has 4 of the 16 elements"));
  EXPECT_THAT(sentence(Division::replicated(shape, {0}), Division::replicated(shape, {2})), HasSubstr("names rank 2"));
  EXPECT_THAT(sentence(Division::replicated(shape, {0, 0}), Division::replicated(shape, {1})),
              HasSubstr("rank 0 twice before it"));
  EXPECT_THAT(sentence(Division::replicated({5, 4}, {0}), Division::replicated(shape, {1})),
              HasSubstr("not inside its shape"));
  EXPECT_THAT(sentence({{0, 1}, {{{{0, 0}, {3, 4}}}, {{{1, 0}, {4, 4}}}}}, Division::replicated(shape, {1})),
              HasSubstr("share a part only"));
  EXPECT_THAT(sentence({{0}, {{{{0, 0}, {4, 4}}, {{1, 0}, {2, 4}}}}}, Division::replicated(shape, {1})),
              HasSubstr("rank 0 elements of [1..2, 0..4] twice before it"));
  EXPECT_THAT(sentence_of([&] { Division::along(2, shape, {0}); }), HasSubstr("along dimension 2"));
  EXPECT_THAT(sentence_of([&] { plan_move({}, 2, {}, 5); }), HasSubstr("at least 65536 bytes"));
}

}  // namespace
}  // namespace stretto
