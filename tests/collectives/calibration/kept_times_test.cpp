#include "collectives/calibration/kept_times.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../../temporary_directory.hpp"

namespace stretto {
namespace {

const Method ring = Algorithm::ring, lanes = method_from_text("ring*4"), packet = Algorithm::packet,
             staged = Algorithm::staged;

CallTimes call(std::int64_t bytes, const std::vector<MethodTime>& methods, bool symmetric = false) {
  return {{Collective::all_reduce, Algorithm::automatic, 0, 4, bytes / 4}, bytes, symmetric, methods};
}

// In one measurement another job has slowed down the ring, which is the fastest method otherwise.
TEST(KeptTimes, OneMeasurementDecidesNothing) {
  KeptTimes times;
  times.add({call(64, {{ring, 4e-6}, {staged, 2e-6}})});
  EXPECT_EQ(times.joined()[0].fastest().method, staged);
  times.add({call(64, {{ring, 1e-6}, {staged, 2e-6}})});
  EXPECT_NEAR(times.joined()[0].of(ring), 2e-6, 1e-12);
  times.add({call(64, {{ring, 1e-6}, {staged, 2e-6}})});
  EXPECT_EQ(times.joined()[0].fastest().method, ring);
  EXPECT_EQ(times.measurements, 3);
  times.add({call(64, {{ring, 1e-6}, {staged, 2e-6}})});
  EXPECT_EQ(times.measurements, 3);
}

TEST(KeptTimes, EachMeasurementCountsByItsRatios) {
  KeptTimes times;
  times.add({call(64, {{ring, 1e-6}, {staged, 2e-6}})});
  times.add({call(64, {{ring, 130e-6}, {staged, 100e-6}})});  // when all methods took a hundred times as long
  EXPECT_EQ(times.joined()[0].fastest().method, ring);
}

// One of three measurements has a disturbed time of the ring, and in the last one all methods take ten times as long.
TEST(KeptTimes, ADisturbedTimeDoesNotCount) {
  for (int disturbed = 0; disturbed < 3; ++disturbed) {
    for (const double times_slower : {0.1, 10.0}) {
      KeptTimes times;
      for (int i = 0; i < 3; ++i) {
        const double unit = i == 2 ? 1e-5 : 1e-6, of_ring = i == disturbed ? times_slower : 1;
        times.add({call(64, {{ring, of_ring * unit}, {staged, 2 * unit}, {lanes, 3 * unit}})});
      }
      const CallTimes joined = times.joined()[0];
      EXPECT_NEAR(joined.of(staged) / joined.of(ring), 2, 1e-9);
      EXPECT_NEAR(joined.of(lanes) / joined.of(ring), 3, 1e-9);
    }
  }
}

TEST(KeptTimes, MethodsAndCallsThatOnlyOneMeasurementHas) {
  KeptTimes times;
  times.add({call(1 << 20, {{ring, 1e-6}}), call(64, {{ring, 1e-6}, {staged, 1e-6}})});
  times.add({call(64, {{packet, 1e-6}, {ring, 1e-6}}), call(64, {{packet, 1e-6}}, true), call(1 << 20, {{staged, 3e-6}})});
  ASSERT_EQ(times.calls.size(), 3U);
  EXPECT_EQ(times.joined()[0].methods.size(), 3U);
  EXPECT_TRUE(times.joined()[1].symmetric);
  EXPECT_EQ(times.joined()[2].bytes, 1 << 20);
  EXPECT_EQ(times.joined()[2].fastest().method, staged);  // they have no method in common
}

TEST(KeptTimes, ACallCountsByItsOwnMeasurements) {
  KeptTimes times;
  times.add({call(64, {{ring, 1e-6}})});
  times.add({call(64, {{ring, 1e-6}}), call(1 << 20, {{ring, 1e-3}})});
  times.add({call(1 << 20, {{ring, 4e-3}})});
  EXPECT_EQ(times.measurements, 3);
  EXPECT_NEAR(times.joined()[1].of(ring), 2e-3, 1e-9);
}

TEST(KeptTimes, AMeasurementThatSharesNoMethodIsLeftOut) {
  KeptTimes times;
  times.add({call(64, {{ring, 1e-6}, {staged, 3e-6}})});
  times.add({call(64, {{ring, 1e-6}, {staged, 5e-6}})});
  times.add({call(64, {{packet, 9e-6}})});
  EXPECT_EQ(times.joined()[0].methods.size(), 2U);
  EXPECT_EQ(times.joined()[0].fastest().method, ring);
}

TEST(KeptTimes, OfManyMeasurementsTheLastThreeCount) {
  KeptTimes times;
  for (const double seconds : {1.0, 1.0, 8.0, 8.0, 8.0})
    times.add({call(64, {{ring, seconds}, {staged, 2.0}, {lanes, 3.0}})});
  EXPECT_EQ(times.calls[0].size(), 3U);
  EXPECT_NEAR(times.joined()[0].of(ring), 8, 1e-9);
}

TEST(KeptTimes, AMethodThatOneMeasurementLacksKeepsItsRatio) {
  KeptTimes times;
  times.add({call(64, {{ring, 2e-6}, {staged, 1e-6}})});
  times.add({call(64, {{ring, 200e-6}, {packet, 50e-6}})});  // when all methods took a hundred times as long
  EXPECT_NEAR(times.joined()[0].of(ring), 20e-6, 1e-12);
  EXPECT_NEAR(times.joined()[0].of(staged), 10e-6, 1e-12);
  EXPECT_NEAR(times.joined()[0].of(packet), 5e-6, 1e-12);
}

TEST(KeptTimes, AFileOfSeveral) {
  const TemporaryDirectory directory;
  const KeptTimesFile file(directory / "new/times");
  EXPECT_EQ(file.read("shm").measurements, 0);
  KeptTimes times;
  times.add({call(64, {{ring, 1.5e-6}, {lanes, 2e-6}}), call(64, {{packet, 1e-7}}, true)});
  file.write("shm", times);
  times.add({call(64, {{ring, 1.5e-6}})});
  file.write("network", times);
  EXPECT_EQ(file.read("network").measurements, 2);
  const KeptTimes read = file.read("shm");
  EXPECT_EQ(read.measurements, 1);
  ASSERT_EQ(read.calls.size(), 2U);
  EXPECT_EQ(file.read("network").calls[0].size(), 2U);
  EXPECT_EQ(read.calls[0][0].request, call(64, {}).request);
  EXPECT_DOUBLE_EQ(read.calls[0][0].of(lanes), 2e-6);
  EXPECT_TRUE(read.calls[1][0].symmetric);
  for (const char* nowhere : {"", "/dev/null/times"}) {
    KeptTimesFile(nowhere).write("shm", times);
    EXPECT_EQ(KeptTimesFile(nowhere).read("shm").measurements, 0);
  }
}

TEST(KeptTimes, AFileThatCannotBeReadCountsAsNone) {
  const TemporaryDirectory directory;
  const auto measurements = [&](const std::string& calls, const std::string& count = "1") {
    const std::string text = R"({"shm": {"measurements": )" + count + R"(, "calls": [)" + calls + "]}}";
    return KeptTimesFile(directory.write("times", text)).read("shm").measurements;
  };
  const std::string good =
      R"({"collective": "all_reduce", "ranks": 4, "count": 16, "bytes": 64, "symmetric": false, "us": [{"ring": 1}]})";
  const auto with = [&](const std::string& part, const std::string& instead) {
    std::string text = good;
    return text.replace(text.find(part), part.size(), instead);
  };
  EXPECT_EQ(measurements(good), 1);
  EXPECT_EQ(measurements(good, "1e99"), 0);
  EXPECT_EQ(measurements(good, "0"), 0);
  EXPECT_EQ(measurements(good, "4"), 0);
  EXPECT_EQ(measurements(with("\"ring\": 1", "")), 0);
  EXPECT_EQ(measurements(with("\"ring\": 1", "\"ring\": 0")), 0);
  EXPECT_EQ(measurements(with("\"ring\": 1", "\"ring\": -1")), 0);
  EXPECT_EQ(measurements(with("\"ring\": 1", "\"rung\": 1")), 0);
  EXPECT_EQ(measurements(with("all_reduce", "all_produce")), 0);
  EXPECT_EQ(measurements(with("16", "1e99")), 0);
  EXPECT_EQ(measurements(with("false", "3")), 0);
  EXPECT_EQ(measurements(with("[{", "[{\"ring\": 1}, {\"ring\": 1}, {\"ring\": 1}, {")), 0);
  EXPECT_EQ(measurements(with("[{\"ring\": 1}]", "[]")), 0);
  EXPECT_EQ(measurements(with("[{\"ring\": 1}]", "{\"ring\": 1}")), 0) << "an earlier version's";
  EXPECT_EQ(measurements("3"), 0);
  for (const char* text : {"", "{", "[]", R"({"shm": 3})", R"({"shm": {}})"}) {
    EXPECT_EQ(KeptTimesFile(directory.write("times", text)).read("shm").measurements, 0) << text;
  }
}

}  // namespace
}  // namespace stretto
