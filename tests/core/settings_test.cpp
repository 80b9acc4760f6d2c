// Settings are read by name, and a mistake in one is an error instead of being ignored.
#include "stretto/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "core/setting_values.hpp"
#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Constructed before the tables and so destroyed after them, like a communicator in static storage.
struct ReaderAtExit {
  ~ReaderAtExit() {
    bool listed = !settings().empty();
    for (const Setting& one : settings()) {
      const char* const given = std::getenv(one.name);
      listed = listed && setting(one.name) == (given != nullptr ? given : one.default_value);
    }
    if (!listed) std::_Exit(1);
  }
} reader_at_exit;

TEST(Settings, AreThereUntilTheProgramHasEnded) {
  EXPECT_EXIT(std::exit(setting("STRETTO_TIMEOUT").empty() ? 1 : 0), testing::ExitedWithCode(0), "");
}

TEST(Settings, AreListedWithMeaningAndDefault) {
  const std::map<std::string, std::string> expected{{"STRETTO_TRANSPORT", "auto"},
                                                    {"STRETTO_TIMEOUT", "600"},
                                                    {"STRETTO_WAIT", "auto"},
                                                    {"STRETTO_RING_BYTES", "0"},
                                                    {"STRETTO_SHM_DIR", ""},
                                                    {"STRETTO_COMPUTE_THREADS", "1"},
                                                    {"STRETTO_CPU_LEVEL", "native"},
                                                    {"STRETTO_GPU", ""},
                                                    {"STRETTO_GPU_TRANSPORT", "auto"},
                                                    {"STRETTO_NCCL_SERVE", "auto"},
                                                    {"STRETTO_NCCL_REPORT", "0"},
                                                    {"STRETTO_JOB_SECRET", ""},
                                                    {"STRETTO_INSECURE", "0"},
                                                    {"STRETTO_PIN", "auto"},
                                                    {"STRETTO_PORT", "0"},
                                                    {"STRETTO_SERVERS_PORT", "0"},
                                                    {"STRETTO_PROGRAMS_PORT", "0"},
                                                    {"STRETTO_ADDRESS", ""},
                                                    {"STRETTO_MEET_TIMEOUT", "60"},
                                                    {"STRETTO_LOG", "warn"},
                                                    {"STRETTO_LEDGER", "65536"},
                                                    {"STRETTO_ALGO", ""},
                                                    {"STRETTO_TUNING", ""},
                                                    {"STRETTO_EXPLAIN", "0"},
                                                    {"STRETTO_FLIGHT_DIR", ""},
                                                    {"STRETTO_DETERMINISTIC", "0"},
                                                    {"STRETTO_CACHE_DIR", ""},
                                                    {"STRETTO_CALIBRATE", "auto"},
                                                    {"STRETTO_CHECK", "0"},
                                                    {"STRETTO_RANKS_PER_NODE", "0"},
                                                    {"STRETTO_NODES_PER_POD", "0"},
                                                    {"STRETTO_LINKS", ""},
                                                    {"STRETTO_NETWORK", "10Gb/s,20us"},
                                                    {"STRETTO_HEAP_BYTES", "68719476736"},
                                                    {"STRETTO_MPI_REPORT", "0"}};
  std::map<std::string, std::string> listed;
  for (const Setting& one : settings()) {
    EXPECT_STRNE(one.meaning, "") << one.name;
    EXPECT_TRUE(listed.emplace(one.name, one.default_value).second) << one.name << " is listed twice";
  }
  EXPECT_EQ(listed, expected);
}

TEST(Settings, DefaultsAreInForceAndCanBeRead) {
  for (const Setting& one : settings()) {
    const Variable unset(one.name, std::nullopt);
    EXPECT_EQ(setting(one.name), one.default_value);
    const Variable set(one.name, one.default_value);
    EXPECT_NO_THROW(check_settings()) << one.name;
  }
  EXPECT_EQ(number_setting("STRETTO_TIMEOUT"), 600);
}

TEST(Settings, TheEnvironmentOverridesADefault) {
  const Variable shorter("STRETTO_TIMEOUT", "1.5");
  EXPECT_EQ(setting("STRETTO_TIMEOUT"), "1.5");
  EXPECT_EQ(number_setting("STRETTO_TIMEOUT"), 1.5);
}

TEST(Settings, OneThatDoesNotExistIsRefusedByName) {
  const Variable misspelt("STRETTO_TIMOUT", "5");
  EXPECT_THAT(sentence_of(check_settings), AllOf(HasSubstr("STRETTO_TIMOUT"), HasSubstr("stretto-info")));
}

TEST(Settings, TheTestsMayHaveTheirOwn) {
  const Variable tier("STRETTO_TEST_ALL", "1"), any("STRETTO_TEST_OF_TODAY", "x");
  EXPECT_EQ(sentence_of(check_settings), "");
}

TEST(Settings, ANumberThatIsNoneIsRefusedWithItsValue) {
  for (const char* value : {"soon", "", "5s", "-1", "nan"}) {
    const Variable bad("STRETTO_TIMEOUT", value);
    const auto names_both = AllOf(HasSubstr("STRETTO_TIMEOUT='" + std::string(value) + "'"), HasSubstr("600"));
    EXPECT_THAT(sentence_of(check_settings), names_both);
    EXPECT_THAT(sentence_of([] { number_setting("STRETTO_TIMEOUT"); }), names_both);
  }
}

TEST(Settings, ANumberBeyondItsBoundsIsRefusedWithThem) {
  const std::vector<std::array<const char*, 3>> cases{{"STRETTO_COMPUTE_THREADS", "0", "1 to 1024"},
                                                      {"STRETTO_COMPUTE_THREADS", "100000", "1 to 1024"},
                                                      {"STRETTO_PORT", "65536", "0 to 65535"},
                                                      {"STRETTO_TIMEOUT", "1e15", "1000000000"},
                                                      {"STRETTO_MEET_TIMEOUT", "1e15", "1000000000"}};
  for (const auto& [name, value, bounds] : cases) {
    const Variable bad(name, value);
    EXPECT_THAT(sentence_of(check_settings), AllOf(HasSubstr(name), HasSubstr(value), HasSubstr(bounds)));
  }
}

TEST(Settings, AChoiceThatIsNoneIsRefusedWithTheChoices) {
  const Variable bad("STRETTO_TRANSPORT", "carrier-pigeon");
  const auto names_both = AllOf(HasSubstr("STRETTO_TRANSPORT='carrier-pigeon'"), HasSubstr("auto, shm, ucx"));
  EXPECT_THAT(sentence_of(check_settings), names_both);
  EXPECT_THAT(sentence_of([] { choice_setting("STRETTO_TRANSPORT"); }), names_both);
}

TEST(Settings, EachChoiceIsTaken) {
  for (const char* value : {"auto", "nccl", "copies", "ipc", "staged"}) {
    const Variable good("STRETTO_GPU_TRANSPORT", value);
    EXPECT_EQ(sentence_of(check_settings), "") << value;
  }
}

TEST(Settings, ReadingOneThatIsNotListedIsABug) {
  sentence_of(ErrorCode::internal, [] { setting("STRETTO_FOO"); });
}

}  // namespace
}  // namespace stretto
