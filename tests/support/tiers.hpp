#pragma once
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <vector>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case. `./dev test --daily` sets it to daily: each test then runs every case on one day in sixteen,
// when it is its turn, and the default selection on the others. Tests that take very long run a part of their cases on their
// day.
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

constexpr unsigned days_of_a_round = 16;  // after which every test has run every case

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

// The cases of a test that takes long for each, as of_today() in programs.py: all of them, but in daily tests, unless all
// cases have their turn, one in `parts`, every day others.
template <class Case>
std::vector<Case> of_today(const std::vector<Case>& cases, unsigned parts = 2) {
  if (!daily_tests() || all_tests()) return cases;
  std::vector<Case> result;
  for (std::size_t i = seed_of_the_day() % parts; i < cases.size(); i += parts) result.push_back(cases[i]);
  return result;
}

}  // namespace stretto
