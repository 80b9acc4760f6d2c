#include "program/control/busy_seconds.hpp"

#include <gtest/gtest.h>

namespace stretto {
namespace {

TEST(BusySeconds, CountsTheShareOfTheWindow) {
  BusySeconds busy;
  EXPECT_EQ(busy.share(1000.5), 0);
  busy.add(1000.75, 0.5);  // in the second that is not over yet
  EXPECT_EQ(busy.share(1000.9), 0);
  EXPECT_DOUBLE_EQ(busy.share(1001), 0.05);
  busy.add(1004.5, 2.25);  // spread over three seconds
  EXPECT_DOUBLE_EQ(busy.share(1005), 0.275);
  EXPECT_DOUBLE_EQ(busy.share(1010.9), 0.275);
  EXPECT_DOUBLE_EQ(busy.share(1011), 0.225) << "the first half second is over ten seconds ago";
  EXPECT_EQ(busy.share(1100), 0);
}

TEST(BusySeconds, IsNeverMoreThanAll) {
  BusySeconds busy;
  busy.add(1000, 100);  // longer than the window
  EXPECT_DOUBLE_EQ(busy.share(1000), 1);
  EXPECT_DOUBLE_EQ(busy.share(1005), 0.5);
}

}  // namespace
}  // namespace stretto
