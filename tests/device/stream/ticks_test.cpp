// Ticks become seconds of now_seconds().
#include "device/stream/ticks.hpp"

#include <gtest/gtest.h>

#include "stretto/stream.hpp"

namespace stretto {
namespace {

TEST(Ticks, BecomeSeconds) {
  const double before = now_seconds();
  const std::uint64_t begin = ticks();
  while (now_seconds() - before < 1e-3) {
  }
  const std::uint64_t end = ticks();
  const TickClock clock;
  const Span span = clock.seconds_of(begin, end);
  EXPECT_NEAR(span.begin, before, 1e-1);
  EXPECT_GT(span.end, span.begin);
  EXPECT_EQ(clock.seconds_of(0, end).end, 0);
}

// Another core's counter may be a little behind.
TEST(Ticks, NothingEndsBeforeItBegins) {
  const std::uint64_t begin = ticks();
  const Span span = seconds_of(begin, begin - 10);
  EXPECT_EQ(span.end, span.begin);
  EXPECT_GT(span.begin, 0);
}

}  // namespace
}  // namespace stretto
