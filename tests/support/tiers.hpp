#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string_view>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case. `./dev test --daily` sets it to daily: every case but those of tests that take very long, which
// run a part of theirs, every day another one, or as few as by default.
namespace stretto {

// Whether every case runs, rather than the default selection.
inline bool all_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  return value != nullptr && (std::string_view(value) == "1" || std::string_view(value) == "daily");
}

inline bool daily_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  return value != nullptr && std::string_view(value) == "daily";
}

// Of a test that takes very long and has its cases in so many parts: how many parts to make, of which today's runs.
inline unsigned parts_of_a_day(unsigned parts) { return daily_tests() ? parts : 1; }

// What a test draws with that tries other cases every day: the number of this day, or --gtest_random_seed, by which a
// failure is drawn again.
inline unsigned seed_of_the_day() {
  const auto given = static_cast<unsigned>(GTEST_FLAG_GET(random_seed));
  if (given != 0) return given;
  const auto days = std::chrono::duration_cast<std::chrono::days>(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<unsigned>(days.count());
}

}  // namespace stretto
