#include "stretto/job.hpp"

#include <gtest/gtest.h>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(Job, IsTheSameForAllCommunicatorsOfARank) {
  run_threads(2, [](const Communicator& world) {
    const Communicator other = world.duplicate("other");
    other.job().set_timeout(77 + world.rank());
    EXPECT_EQ(world.job().timeout(), 77 + world.rank());  // and not the other rank's
    EXPECT_EQ(&other.job().ledger(), &world.job().ledger());
    other.barrier(Stream::inline_()).wait();
    EXPECT_EQ(world.job().ledger().last(1).back().group, "other");
  });
}

}  // namespace
}  // namespace stretto
