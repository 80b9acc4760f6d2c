// The measurement at a job's start, seen from inside the job. tests/tools/calibration_test.py sees its file.
#include <gtest/gtest.h>

#include "../../temporary_directory.hpp"
#include "../../variables.hpp"
#include "stretto/launch.hpp"

namespace stretto {
namespace {

void ledger_begins_here(const Communicator& world) {
  if (!world.ledger().records().empty() || world.ledger().next_sequence() != 0)
    throw std::runtime_error("There are records.");
  float value = 1;
  world.all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum, Stream::inline_()).wait();
  const std::vector<Record> records = world.ledger().records();
  if (records.size() != 1 || records[0].number != 1) throw std::runtime_error("The first operation is not the first.");
}

TEST(SelfCalibration, TheLedgerBeginsWithTheProgram) {
  const TemporaryDirectory cache;
  const Variable directory("STRETTO_CACHE_DIR", cache.path()), now("STRETTO_CALIBRATE", "now");
  EXPECT_EQ(launch(2, ledger_begins_here), 0);
}

}  // namespace
}  // namespace stretto
