#include <gmock/gmock.h>

#include <map>

#include "stretto/server.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

constexpr int most_keys = 20000;

TEST(HashRing, SharesKeysEvenly) {
  for (const int servers : {2, 4, 8}) {
    HashRing ring(256);
    for (int server = 0; server < servers; ++server) ring.add(server);
    std::map<int, int> of;
    for (int key = 0; key < most_keys; ++key) ++of[ring.owner(static_cast<std::uint64_t>(key))];
    for (int server = 0; server < servers; ++server)
      EXPECT_NEAR(of[server], 1.0 * most_keys / servers, 0.3 * most_keys / servers);
  }
}

// About 1 / (servers + 1) of the keys go to a server that joins, and no other key moves.
TEST(HashRing, MovesOnlyTheKeysOfTheServerThatJoins) {
  for (const int servers : {1, 3, 7}) {
    HashRing ring;
    for (int server = 0; server < servers; ++server) ring.add(server);
    HashRing more = ring;
    more.add(servers);
    int moved = 0;
    for (std::uint64_t key = 0; key < most_keys; ++key) {
      if (more.owner(key) == ring.owner(key)) continue;
      EXPECT_EQ(more.owner(key), servers);
      ++moved;
    }
    EXPECT_NEAR(moved, 1.0 * most_keys / (servers + 1), 0.3 * most_keys / (servers + 1));
    more.remove(servers);
    for (std::uint64_t key = 0; key < most_keys; ++key) ASSERT_EQ(more.owner(key), ring.owner(key));
  }
}

TEST(HashRing, SmallKeysDoNotAllLandOnOneServer) {
  HashRing ring;
  for (int server = 0; server < 4; ++server) ring.add(server);
  std::map<int, int> of;
  for (std::uint64_t key = 0; key < 40; ++key) ++of[ring.owner(key)];
  EXPECT_EQ(of.size(), 4U);
}

// Whoever is removed, the keys that it owned go to the next server of their order.
TEST(HashRing, OrdersServersAsTheyTakeOver) {
  HashRing ring;
  for (int server = 0; server < 4; ++server) ring.add(server);
  for (std::uint64_t key = 0; key < 200; ++key) {
    const std::vector<int> order = ring.order(key);
    EXPECT_THAT(order, testing::UnorderedElementsAre(0, 1, 2, 3));
    HashRing fewer = ring;
    for (const int server : order) {
      EXPECT_EQ(fewer.owner(key), server);
      fewer.remove(server);
    }
  }
}

TEST(HashRing, WithoutServersOwnsNothing) {
  EXPECT_THAT(sentence_of([] { HashRing().owner(7); }), testing::HasSubstr("Key 7 has no server"));
}

}  // namespace
}  // namespace stretto
