// Plans of two and three levels: on nodes that are alike and others, in pieces and lanes; what they cost, and what of it
// crosses the nodes' boundaries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "cost_of_plans.hpp"
#include "stretto/error.hpp"
#include "stretto/proof.hpp"
#include "stretto/simulate.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

Method two_level_of(Algorithm inside, Algorithm between, int lanes = 1, int pieces = 1) {
  Method method(Algorithm::two_level);
  method.inside = inside;
  method.between = between;
  method.lanes = lanes;
  method.pieces = pieces;
  return method;
}

std::vector<Plan> plans_of(PlanRequest request) {
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.size; ++request.rank) plans.push_back(make_plan(request));
  return plans;
}

std::vector<int> nodes_of(const PlanRequest& request) {
  std::vector<int> nodes;
  for (std::size_t node = 0; node < request.node_sizes.size(); ++node) {
    nodes.insert(nodes.end(), static_cast<std::size_t>(request.node_sizes[node]), static_cast<int>(node));
  }
  for (int rank = 0; request.ranks_per_node > 0 && rank < request.size; ++rank) {
    nodes.push_back(rank / request.ranks_per_node);
  }
  return nodes;
}

std::string text_of(const PlanRequest& request) {
  std::string text = to_string(ProofCase{request, false}) + ", nodes";
  for (const int ranks : request.node_sizes) text += " " + std::to_string(ranks);
  return text + ", " + std::to_string(request.nodes_per_pod) + " a pod";
}

void expect_right(const PlanRequest& request) {
  const std::vector<Plan> plans = plans_of(request);
  ASSERT_EQ(verify(plans, false).value_or(""), "") << text_of(request);
  if (can_be_in_place(request.collective)) {
    ASSERT_EQ(verify(plans, true).value_or(""), "") << text_of(request) << ", in place";
  }
}

const std::vector<Collective> all_with_levels{Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,
                                              Collective::all_to_all, Collective::broadcast,      Collective::reduce};

std::string sentence_of(const PlanRequest& request) {
  try {
    make_plan(request);
  } catch (const Error& error) {
    EXPECT_THROW(cost_of(request), Error);
    return error.what();
  }
  return "";
}

// Names the part that cannot do what it would have to.
bool is_of_a_part(const std::string& sentence) {
  return sentence.find("as a part") != std::string::npos || sentence.find("straight to their owners") != std::string::npos;
}

class Levels : public testing::TestWithParam<Collective> {};
INSTANTIATE_TEST_SUITE_P(All, Levels, testing::ValuesIn(all_with_levels),
                         [](const auto& parameter) { return std::string(name(parameter.param)); });

// Node sizes, parts, lanes, pieces, pods, counts and root at random, of 2 to 40 ranks.
TEST_P(Levels, AreRightOnAnyNodes) {
  std::mt19937 random(static_cast<unsigned>(GetParam()) + 1);
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  const auto any_part = [&] { return static_cast<Algorithm>(1 + below(static_cast<int>(Algorithm::two_level) - 1)); };
  const auto part_of = [&](Collective collective) {
    const auto& known = algorithms_for(collective);
    return known[static_cast<std::size_t>(below(static_cast<int>(known.size())))];
  };
  int proved = 0;
  int uneven_proved = 0;
  int pods_proved = 0;
  for (int i = 0; proved < 300 || pods_proved < 20; ++i) {
    ASSERT_LT(i, 100000);
    PlanRequest request{.collective = GetParam()};
    const int nodes = 1 + below(8);
    const bool alike = below(2) == 0;
    const int ranks = 1 + below(5);
    request.size = 0;
    for (int node = 0; node < nodes; ++node) {
      request.node_sizes.push_back(alike ? ranks : 1 + below(5));
      request.size += request.node_sizes.back();
    }
    if (alike && below(2) == 0) {
      request.node_sizes.clear();
      request.ranks_per_node = ranks;
    }
    request.method = two_level_of(any_part(), below(3) == 0 ? Algorithm::direct : part_of(GetParam()));
    request.method.pieces = 1 + below(5);
    request.method.lanes = 1 + below(std::min(request.method.pieces, most_lanes));
    if (below(2) == 0) {
      request.method.algorithm = Algorithm::three_level;
      request.method.above = part_of(GetParam());
      request.nodes_per_pod = 1 + below(nodes);
      if (nodes % request.nodes_per_pod != 0) continue;
    }
    request.count = below(4) == 0 ? below(3) : below(60);
    request.root = has_root(request.collective) ? below(request.size) : 0;
    const bool takes_counts = request.collective == Collective::all_gather || request.collective == Collective::reduce_scatter;
    if (takes_counts && below(3) == 0) {
      request.count = 0;
      for (int rank = 0; rank < request.size; ++rank) request.counts.push_back(below(8));
    }
    if (const std::string sentence = sentence_of(request); !sentence.empty()) {
      ASSERT_TRUE(is_of_a_part(sentence)) << text_of(request) << ": " << sentence;
      continue;
    }
    expect_right(request);
    if (HasFatalFailure()) return;
    ++proved;
    const bool differ = !alike && nodes > 1;
    uneven_proved += differ ? 1 : 0;
    pods_proved += request.nodes_per_pod > 1 && request.nodes_per_pod < nodes ? 1 : 0;
  }
  EXPECT_GT(uneven_proved, 30);
}

}  // namespace
}  // namespace stretto
