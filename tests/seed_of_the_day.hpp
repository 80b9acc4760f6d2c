#pragma once
#include <gtest/gtest.h>

#include <chrono>

namespace stretto {

// What a test draws with that tries other cases every day: the number of this day, or --gtest_random_seed, by which a
// failure is drawn again.
inline unsigned seed_of_the_day() {
  const auto given = static_cast<unsigned>(GTEST_FLAG_GET(random_seed));
  if (given != 0) return given;
  const auto days = std::chrono::duration_cast<std::chrono::days>(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<unsigned>(days.count());
}

}  // namespace stretto
