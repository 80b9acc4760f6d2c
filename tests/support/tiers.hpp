#pragma once
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

// `./dev test` runs the cases that find most faults in little time; `./dev test --all` sets STRETTO_TEST_ALL=1, and the
// tests then run every case. `./dev test --daily` sets it to daily: each test then runs every case on one day in sixteen,
// when it is its turn, and on the others the default selection, or the part of it that has its turn (of_today). Tests that
// take very long run a part of their cases on their day.
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

// Whether the last commit has changed this file, or what the test in it is named after. `./dev test --daily` names all that
// was changed in STRETTO_TEST_CHANGED, without folder, ending and "_test".
inline bool was_changed(std::string_view file) {
  const char* const changed = std::getenv("STRETTO_TEST_CHANGED");
  if (changed == nullptr) return false;
  std::string_view name = file.substr(file.rfind('/') + 1);
  name = name.substr(0, name.find('.'));
  if (name.ends_with("_test")) name.remove_suffix(std::string_view("_test").size());
  return (' ' + std::string(changed) + ' ').find(' ' + std::string(name) + ' ') != std::string::npos;
}

// The cases of a test that takes long for each, as of_today() in programs.py: all of them, but in daily tests, unless all
// cases have their turn or the last commit has changed what is tested, one in `parts`, every day others. Where a test takes
// parts of two lists, their numbers of parts must have no common divisor: every pair then has its day.
template <class Case>
std::vector<Case> of_today(const std::vector<Case>& cases, unsigned parts = 2, const char* file = __builtin_FILE()) {
  if (!daily_tests() || all_tests() || was_changed(file)) return cases;
  std::vector<Case> result;
  for (std::size_t i = seed_of_the_day() % parts; i < cases.size(); i += parts) result.push_back(cases[i]);
  return result;
}
template <class Case>
std::vector<Case> of_today(std::initializer_list<Case> cases, unsigned parts = 2, const char* file = __builtin_FILE()) {
  return of_today(std::vector<Case>(cases), parts, file);
}

}  // namespace stretto
