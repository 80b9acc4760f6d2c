// The partners with which a plan's rank exchanges bytes.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "stretto/plan.hpp"

namespace stretto {
namespace {

using Pairs = std::set<std::pair<int, int>>;  // from, to

struct Said {
  Pairs by_senders, by_receivers;
  Pairs all() const {
    Pairs both = by_senders;
    both.insert(by_receivers.begin(), by_receivers.end());
    return both;
  }
};

Said said_by(PlanRequest request) {
  Said said;
  for (request.rank = 0; request.rank < request.size; ++request.rank) {
    const Plan plan = make_plan(request);
    for (const int to : plan.sends_to()) said.by_senders.emplace(request.rank, to);
    for (const int from : plan.receives_from()) said.by_receivers.emplace(from, request.rank);
  }
  return said;
}

std::set<int> reached_from(int rank, const Pairs& pairs, int size) {
  std::set<int> reached{rank};
  for (int round = 0; round < size; ++round) {
    for (const auto& [from, to] : pairs) {
      if (reached.contains(from)) reached.insert(to);
    }
  }
  return reached;
}

// True if the pairs connect all ranks between which the collective moves data.
bool connects(const PlanRequest& request, const Pairs& pairs) {
  const bool from_root = request.collective == Collective::broadcast || request.collective == Collective::scatter;
  const bool to_root = request.collective == Collective::reduce || request.collective == Collective::gather;
  for (int rank = 0; rank < request.size; ++rank) {
    if (from_root && rank != request.root) continue;
    const std::set<int> reached = reached_from(rank, pairs, request.size);
    if (to_root ? !reached.contains(request.root) : static_cast<int>(reached.size()) < request.size) return false;
  }
  return true;
}

// Visits every collective by every algorithm.
template <class Visit>
void for_each_request(int size, Visit visit) {
  for (int i = 0; i <= static_cast<int>(Collective::barrier); ++i) {
    const auto collective = static_cast<Collective>(i);
    if (collective == Collective::send || collective == Collective::recv) continue;
    for (const Algorithm algorithm : algorithms_for(collective)) {
      PlanRequest request{collective, algorithm, 0, size, collective == Collective::barrier ? 1 : 24};
      if (needs_nodes(algorithm)) continue;  // these are composed of the others
      if (has_root(collective)) request.root = size - 1;
      visit(request);
    }
  }
}

TEST(Partners, AreSaidByBothSidesOfAMessage) {
  for (const int size : {2, 3, 4, 5, 8}) {
    for_each_request(size, [](const PlanRequest& request) {
      const Said said = said_by(request);
      const std::string what =
          fmt::format("{} by {}, {} ranks", name(request.collective), to_string(request.method), request.size);
      EXPECT_TRUE(connects(request, said.all())) << what;
      if (!shares_memory(request.method.algorithm)) {
        EXPECT_EQ(said.by_senders, said.by_receivers) << what;
      }
      for (const auto& [from, to] : said.all()) EXPECT_NE(from, to) << what;
    });
  }
}

TEST(Partners, ControlANeighbourThatIsMissingIsNoticed) {
  const PlanRequest ring{Collective::all_reduce, Algorithm::ring, 0, 4, 24};
  Pairs pairs = said_by(ring).all();
  EXPECT_EQ(pairs, (Pairs{{0, 1}, {1, 2}, {2, 3}, {3, 0}}));
  EXPECT_TRUE(connects(ring, pairs));
  pairs.erase({1, 2});
  EXPECT_FALSE(connects(ring, pairs));
}

TEST(Partners, AreNoneWhereNothingMoves) {
  for (const PlanRequest& request : {PlanRequest{Collective::all_reduce, Algorithm::ring, 1, 3, 0},
                                     PlanRequest{Collective::all_reduce, Algorithm::ring, 0, 1, 8}}) {
    EXPECT_TRUE(make_plan(request).sends_to().empty());
    EXPECT_TRUE(make_plan(request).receives_from().empty());
  }
}

TEST(Partners, OfAMessageAreItsEnds) {
  const Plan send = make_plan({Collective::send, algorithms_for(Collective::send).front(), 0, 3, 5, 2});
  EXPECT_EQ(send.sends_to(), std::vector<int>{2});
  EXPECT_TRUE(send.receives_from().empty());
  const Plan receive = make_plan({Collective::recv, algorithms_for(Collective::recv).front(), 2, 3, 5, 0});
  EXPECT_EQ(receive.receives_from(), std::vector<int>{0});
}

}  // namespace
}  // namespace stretto
