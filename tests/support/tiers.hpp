#pragma once
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case. `./dev test --daily` sets it to daily: each test then runs every case on one day in eight, when
// it is its turn, and the default selection on the others. Tests that take very long run a part of their cases on their day.
namespace stretto {

// What a test draws with that tries other cases every day: the number of this day, or --gtest_random_seed, by which a
// failure is drawn again.
inline unsigned seed_of_the_day() {
  const auto given = static_cast<unsigned>(GTEST_FLAG_GET(random_seed));
  if (given != 0) return given;
  const auto days = std::chrono::duration_cast<std::chrono::days>(std::chrono::system_clock::now().time_since_epoch());
  return static_cast<unsigned>(days.count());
}

inline bool daily_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  return value != nullptr && std::string_view(value) == "daily";
}

constexpr unsigned days_of_a_round = 8;  // after which every test has run every case

// Whether every case runs, rather than the default selection. In daily tests the day and the name of the running test
// decide, or the program's before a test runs.
inline bool all_tests() {
  const char* const value = std::getenv("STRETTO_TEST_ALL");
  if (value == nullptr || (std::string_view(value) != "1" && std::string_view(value) != "daily")) return false;
  if (!daily_tests()) return true;
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  unsigned turn = seed_of_the_day();
  for (const char letter : std::string_view(test != nullptr ? test->name() : program_invocation_short_name)) {
    turn += static_cast<unsigned char>(letter);
  }
  return turn % days_of_a_round == 0;
}

// Of a test that takes very long and has its cases in so many parts: which part a case is in, and whether that runs today.
inline bool is_of_today(unsigned number, unsigned parts) {
  return !daily_tests() || !all_tests() || number % parts == seed_of_the_day() / days_of_a_round % parts;
}

}  // namespace stretto
