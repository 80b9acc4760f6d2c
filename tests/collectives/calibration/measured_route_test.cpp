// From invented times to a tuning file, and from it to choices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stretto/planning/calibration.hpp"

namespace stretto {
namespace {

using testing::HasSubstr;

CallTimes times_of(Collective collective, std::int64_t bytes, const std::vector<MethodTime>& methods,
                   bool symmetric = false) {
  const auto count = TimedCall::count_of(collective, bytes, 4);
  return {{collective, Algorithm::automatic, 0, 4, count}, bytes, symmetric, methods};
}

std::vector<CallTimes> two_methods() {
  const Method few = Algorithm::recursive_doubling, many = Algorithm::ring;
  return {times_of(Collective::all_reduce, 64, {{few, 1e-6}, {many, 3e-6}}),
          times_of(Collective::all_reduce, 6400, {{few, 2e-6}, {many, 3e-6}}),
          times_of(Collective::all_reduce, 640000, {{few, 90e-6}, {many, 60e-6}}),
          times_of(Collective::all_reduce, 6400, {{many, 1e-6}}, true)};
}

TEST(MeasuredRoute, TableChangesWhereTheTimesCross) {
  const std::vector<CallTimes> all = two_methods();
  std::vector<CallTimes> ordinary(all.begin(), all.begin() + 3);
  EXPECT_EQ(table_of(ordinary), "all_reduce:0-64000:recursive_doubling,64000-inf:ring");
  EXPECT_EQ(table_of(ordinary, 4), "all_reduce:0-64000:recursive_doubling,64000-2560001:ring");
  ordinary[1].methods[1].seconds = 2e-6 * 1.5 * 1.5 * 1.5;  // three parts before the crossing, one behind it
  EXPECT_EQ(table_of(ordinary), "all_reduce:0-202000:recursive_doubling,202000-inf:ring");
  ordinary[1].methods.pop_back();  // it is not known where they cross
  EXPECT_EQ(table_of(ordinary), "all_reduce:0-64000:recursive_doubling,64000-inf:ring");
}

TEST(MeasuredRoute, AThirdMethodHasTheRangeInWhichItIsFaster) {
  const Method a = Algorithm::recursive_doubling, b = Algorithm::staged, c = Algorithm::ring;
  const auto table_with = [&](double of_b) {
    return table_of({times_of(Collective::all_reduce, 64, {{a, 1e-6}, {b, of_b}, {c, 8e-6}}),
                     times_of(Collective::all_reduce, 64 << 10, {{a, 1e-3}, {b, 64 * of_b}, {c, 32e-6}})});
  };
  EXPECT_EQ(table_with(2e-6), "all_reduce:0-367:recursive_doubling,367-2050:staged,2050-inf:ring");
  EXPECT_EQ(table_with(4e-6), "all_reduce:0-871:recursive_doubling,871-inf:ring");
  // A packet holds at most 16 KiB.
  EXPECT_EQ(table_of({times_of(Collective::all_reduce, 4 << 10, {{Algorithm::packet, 1e-6}, {b, 2e-6}, {c, 8e-6}}),
                      times_of(Collective::all_reduce, 4 << 20, {{b, 128e-6}, {c, 32e-6}})}),
            "all_reduce:0-16385:packet,16385-131000:staged,131000-inf:ring");
}

TEST(MeasuredRoute, BeyondTheLargestSizePiecesKeepTheirSize) {
  const std::vector<CallTimes> times = {
      times_of(Collective::all_reduce, 1000, {{method_from_text("double_binary_tree/16"), 1}})};
  EXPECT_EQ(table_of(times),
            "all_reduce:0-2000:double_binary_tree/16,2000-8000:double_binary_tree/64,8000-inf:double_binary_tree/256");
  EXPECT_EQ(table_of(times, 4), "all_reduce:0-2000:double_binary_tree/16,2000-4001:double_binary_tree/64");
  EXPECT_EQ(table_of(times, 2), "all_reduce:0-2001:double_binary_tree/16");
}

// The table takes one method for both kinds of memory at 1 KiB, whose times count where it changes.
TEST(MeasuredRoute, AChangeBehindCallsThatAreMadeAlikeIsWhereTheTimesCross) {
  const Method a = Algorithm::packet, b = Algorithm::staged;
  std::vector<CallTimes> times;
  for (const bool symmetric : {false, true}) {
    times.push_back(times_of(Collective::all_reduce, 1000, {{a, 1e-6}, {b, 8e-6}}, symmetric));
    times.push_back(times_of(Collective::all_reduce, 16000, {{a, 4e-6}, {b, 2e-6}}, symmetric));
  }
  const MeasuredRoute measured = measured_route("shm", 4, 1, times);
  EXPECT_EQ(measured.table, "all_reduce:0-8000:packet,8000-inf:staged");
  EXPECT_EQ(measured.symmetric_table, measured.table);
}

// The second method is the best at one size only, and both boundaries are rounded to it.
TEST(MeasuredRoute, NoRangeIsEmpty) {
  const Method a = Algorithm::recursive_doubling, b = Algorithm::two_shot, c = Algorithm::ring;
  EXPECT_EQ(table_of({times_of(Collective::all_reduce, 1000, {{a, 1e-6}, {b, 1e-3}}),
                      times_of(Collective::all_reduce, 1010, {{a, 1.12e-6}, {b, 1e-6}, {c, 1.12e-6}}),
                      times_of(Collective::all_reduce, 1020, {{b, 1e-3}, {c, 1e-6}})}),
            "all_reduce:0-1010:recursive_doubling,1010-inf:ring");
}

TEST(MeasuredRoute, ASingleNoisySizeChangesNothing) {
  const Method a = Algorithm::ring, b = Algorithm::two_shot;
  std::vector<CallTimes> times;
  for (const double of_b : {1.2, 0.98, 1.2})
    times.push_back(times_of(Collective::all_reduce, 64 << (2 * times.size()), {{a, 1}, {b, of_b}}));
  EXPECT_EQ(table_of(times), "all_reduce:0-inf:ring");
  times[1].methods[1].seconds = 0.5;
  EXPECT_THAT(table_of(times), HasSubstr("two_shot"));
}

TEST(MeasuredRoute, APacketsCapacityIsABoundary) {
  const std::vector<CallTimes> times = {times_of(Collective::all_reduce, 8192, {{Algorithm::packet, 1e-6}}),
                                        times_of(Collective::all_reduce, 1 << 20, {{Algorithm::ring, 1e-6}})};
  EXPECT_EQ(table_of(times), "all_reduce:0-16385:packet,16385-inf:ring");
}

// Ranks whose choice depends on it tell each other where their buffers lie, at each call, in the time of a small all_gather.
// With a root, that counts at every size.
TEST(MeasuredRoute, BothKindsOfMemoryTravelAlikeWhereTellingTakesLonger) {
  const Method a = Algorithm::packet, b = Algorithm::staged, push = Algorithm::push;
  const auto tables = [&](Collective collective, std::int64_t bytes, double telling) {
    const MeasuredRoute measured = measured_route(
        "shm", 4, 1,
        {times_of(Collective::all_gather, 64, {{b, telling}}), times_of(collective, bytes, {{a, 1e-6}, {b, 3e-6}}),
         times_of(collective, bytes, {{a, 2e-6}, {b, 1e-6}, {push, 0.5e-6}}, true)});
    return std::pair(measured.table, measured.symmetric_table);
  };
  const auto both = [](const char* ordinary, const char* symmetric) {
    return testing::Pair(HasSubstr(ordinary), HasSubstr(symmetric));
  };
  EXPECT_THAT(tables(Collective::all_reduce, 64, 1e-6), both("packet", "packet"));
  EXPECT_THAT(tables(Collective::all_reduce, 4096, 1e-6), both("packet", "push"));
  EXPECT_THAT(tables(Collective::broadcast, 4096, 1e-6), both("packet", "packet"));
  EXPECT_THAT(tables(Collective::broadcast, 4096, 0.5e-6), both("packet", "push"));
}

// At 16 KiB a method of symmetric memory saves too little, at 32 KiB enough: that is not left to the next size measured.
TEST(MeasuredRoute, WhereTellingPaysIsFoundBetweenTheSizes) {
  const Method a = Algorithm::staged, b = Algorithm::pull;
  std::vector<CallTimes> times = {times_of(Collective::all_gather, 64, {{a, 1e-6}})};
  for (const bool symmetric : {false, true}) {
    const double of_b = symmetric ? 2e-6 : 40e-6;
    times.push_back(times_of(Collective::broadcast, 16 << 10, {{a, 4e-6}, {b, of_b}}, symmetric));
    times.push_back(times_of(Collective::broadcast, 256 << 10, {{a, 64e-6}, {b, 16 * of_b}}, symmetric));
  }
  const MeasuredRoute measured = measured_route("shm", 4, 1, times);
  EXPECT_THAT(measured.table, HasSubstr("broadcast:0-inf:staged"));
  EXPECT_THAT(measured.symmetric_table, HasSubstr("broadcast:0-26700:staged,26700-inf:pull"));
}

TEST(MeasuredRoute, ChoicesRestOnWhatWasMeasured) {
  const MeasuredRoute measured = measured_route("shm", 4, 1, two_methods(), 4);
  // 64 bytes were timed in ordinary memory only, which stands for both kinds.
  EXPECT_EQ(measured.symmetric_table, "all_reduce:0-640:recursive_doubling,640-25601:ring");
  EXPECT_GT(measured.route.cost.alpha + measured.route.cost.overhead, 0);
  const Tuning tuning = Tuning::from_json(R"({"routes": [)" + measured.to_json() + "]}", "a file");
  const auto choice = [&](std::int64_t count, bool symmetric, int size = 4) {
    Circumstances where;
    where.shares_memory = true;
    where.symmetric = symmetric;
    return choose({Collective::all_reduce, Algorithm::automatic, 0, size, count}, DType::f32, ReduceOp::sum, tuning, where);
  };
  EXPECT_THAT(choice(16, false).reason, HasSubstr("recursive_doubling, by measurement, in a file"));
  EXPECT_THAT(choice(1 << 18, false).reason, HasSubstr("ring, by measurement, in a file"));
  EXPECT_THAT(choice(1 << 24, false).reason, HasSubstr("cost model"));  // far beyond what was measured
  EXPECT_THAT(choice(16, true).reason, HasSubstr("recursive_doubling, by measurement"));
  EXPECT_THAT(choice(1600, true).reason, HasSubstr("ring, by measurement"));
  EXPECT_THAT(choice(16, false, 3).reason, HasSubstr("cost model"));
}

TEST(MeasuredRoute, BetweenNodesForTheSamePlacementOnly) {
  MeasuredRoute measured;
  measured.route = {
      .route = "network", .ranks = 4, .ranks_per_node = 2, .ranks_per_core = 1, .cost = {1e-5, 1e-6, 1e-9, 1e-10}};
  measured.table = "all_reduce:0-inf:two_level(direct+two_shot)*2/8";
  MeasuredRoute inside;
  inside.route = {.route = "shm", .ranks = 2, .ranks_per_core = 1, .cost = {1e-6, 1e-7, 1e-10, 1e-10}};
  const Tuning tuning = Tuning::from_json(R"({"routes": [)" + measured.to_json() + "," + inside.to_json() + "]}", "a file");
  Circumstances where;
  where.several_nodes = true;
  where.route_between = "network";
  PlanRequest request{Collective::all_reduce, Algorithm::automatic, 0, 4, 1000};
  request.ranks_per_node = 2;
  EXPECT_THAT(choose(request, DType::f32, ReduceOp::sum, tuning, where).reason, HasSubstr("by measurement"));
  request.ranks_per_node = 1;
  EXPECT_THAT(choose(request, DType::f32, ReduceOp::sum, tuning, where).reason, HasSubstr("cost model"));
}

// A machine that was too busy to be timed goes on as before, table and all.
TEST(MeasuredRoute, WithoutTimesKeepsTheTablesThatApply) {
  const Tuning tuning = Tuning::from_json(
      R"({"routes": [{"route": "shm", "ranks": 2, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 2, "bandwidth_gbs": 4,
 "local_gbs": 8, "lane_gain": 0, "table": "broadcast:0-4096:packet,4096-inf:chain/16",
 "symmetric_table": "broadcast:0-inf:push"}]})",
      "test");
  const MeasuredRoute same = unmeasured_route(tuning, "shm", 2, 1.0);
  EXPECT_EQ(same.table, "broadcast:0-4096:packet;broadcast:4096-inf:chain/16");
  EXPECT_EQ(same.symmetric_table, "broadcast:0-inf:push");
  const Tuning again = Tuning::from_json(R"({"routes": [)" + same.to_json() + "]}", "test");
  EXPECT_EQ(to_text(again.routes[0].rules), same.table);
  EXPECT_DOUBLE_EQ(again.routes[0].cost.overhead, 2e-6);
  EXPECT_EQ(unmeasured_route(tuning, "shm", 3, 1.5).table, "") << "measured with other ranks";
}

}  // namespace
}  // namespace stretto
