// The measurement at a job's start, seen from inside the job. tests/tools/calibration_test.py sees its file.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "stretto/launch.hpp"
#include "support/temporary_directory.hpp"
#include "support/variables.hpp"

namespace stretto {
namespace {

void ledger_begins_here(const Communicator& world) {
  if (!world.job().ledger().records().empty() || world.job().ledger().next_sequence() != 0)
    throw std::runtime_error("There are records.");
  float value = 1;
  world.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
  const std::vector<Record> records = world.job().ledger().records();
  if (records.size() != 1 || records[0].number != 1) throw std::runtime_error("The first operation is not the first.");
}

// A job that measures, in an empty cache: what a busy machine does not let it measure is kept, too.
void measure() {
  const TemporaryDirectory cache;
  const Variable directory("STRETTO_CACHE_DIR", cache.path()), automatic("STRETTO_CALIBRATE", "auto");
  EXPECT_EQ(launch(2, ledger_begins_here), 0);
  EXPECT_FALSE(std::filesystem::is_empty(cache.path())) << "nothing was measured";
}

TEST(SelfCalibration, TheLedgerBeginsWithTheProgram) { measure(); }

// A rule that is impossible for large vectors is this job's affair, and not the machine's.
TEST(SelfCalibration, TheUsersRulesAreNotMeasured) {
  const Variable rules("STRETTO_ALGO", "all_reduce:packet");
  measure();
}

// Each rank's own settings might differ: rank 0's decide.
TEST(SelfCalibration, ATuningFileOfOneRank) {
  const TemporaryDirectory cache;
  const std::string file = cache.write(
      "tuning.json", R"({"routes": [{"route": "shm", "ranks": 2, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 1,
 "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0}, {"route": "ucx", "ranks": 2, "ranks_per_core": 1, "alpha_us": 1,
 "overhead_us": 1, "bandwidth_gbs": 1, "local_gbs": 1, "lane_gain": 0}]})");
  const TemporaryDirectory empty;
  const Variable directory("STRETTO_CACHE_DIR", empty.path()), automatic("STRETTO_CALIBRATE", "auto");
  for (const int with_file : {0, 1}) {
    EXPECT_EQ(launch(2,
                     [&](const Communicator& outer) {
                       const Variable mine("STRETTO_TUNING",
                                           outer.rank() == with_file ? std::optional<std::string>(file) : std::nullopt);
                       std::array<char, 128> secret{};
                       int port = 0;
                       MeetingPoint there;
                       if (outer.rank() == 0) {
                         there = open_meeting("127.0.0.1");
                         port = there.port;
                         std::copy(there.secret.begin(), there.secret.end(), secret.begin());
                       }
                       outer.broadcast(&port, &port, sizeof port, DType::u8, 0, Stream::inline_()).wait();
                       outer.broadcast(secret.data(), secret.data(), secret.size(), DType::u8, 0, Stream::inline_()).wait();
                       if (outer.rank() != 0) there = {"127.0.0.1", port, secret.data()};
                       there.may_calibrate = true;
                       ledger_begins_here(connect(outer.rank(), 2, there));
                     }),
              0);
  }
}

}  // namespace
}  // namespace stretto
