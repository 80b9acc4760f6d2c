// Traces: one clock, slices that viewers can draw, arrows between the right ranks, and a file that is whole or not there.
#include "stretto/overlap/trace.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "overlap/trace_arrows.hpp"
#include "overlap/trace_clock.hpp"
#include "overlap/trace_tracks.hpp"
#include "stretto/kernels.hpp"
#include "stretto/stretto.hpp"
#include "variables.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const ClockLine own_clock{ClockReading(), ClockReading()};

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "trace-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string operator/(const char* file) const { return path_ / file; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::filesystem::path path_;
};

json parsed(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<json> events_of(const json& trace, const std::string& phase, const std::string& category = "") {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase && (category.empty() || event.at("cat") == category)) events.push_back(event);
  }
  return events;
}

// ---- clocks

TEST(TraceClock, ReadsTheShortestExchange) {
  // The other clock is 100 ahead. The first answer came early in a long exchange, the second in a short one.
  const ClockReading reading = read_clock({{0, 101, 8}, {10, 110.5, 11}, {20, 124, 26}});
  EXPECT_DOUBLE_EQ(reading.at, 10.5);
  EXPECT_DOUBLE_EQ(reading.offset, 100);
  EXPECT_DOUBLE_EQ(reading.error, 0.5);
  const ClockReading control = read_clock({{0, 101, 8}});
  EXPECT_DOUBLE_EQ(control.offset, 97) << "wrong, ...";
  EXPECT_LE(100 - control.offset, control.error) << "... but not by more than it says";
}

TEST(TraceClock, DriftsEvenlyBetweenTwoReadings) {
  const ClockLine line({.at = 10, .offset = 5, .error = 0.1}, {.at = 20, .offset = 7, .error = 0.3});
  EXPECT_DOUBLE_EQ(line.there(10), 15);
  EXPECT_DOUBLE_EQ(line.there(15), 21);
  EXPECT_DOUBLE_EQ(line.there(20), 27);
  EXPECT_DOUBLE_EQ(line.there(0), 5) << "as in the beginning";
  EXPECT_DOUBLE_EQ(line.there(30), 37) << "as in the end";
  EXPECT_DOUBLE_EQ(line.error(), 0.3);
  EXPECT_DOUBLE_EQ(own_clock.there(12.5), 12.5);
}

TEST(TraceClock, IsComparedWithRank0WhereItIsAnother) {
  run_threads(4, [](const Communicator& world) {
    const bool other_host = world.rank() >= 2;
    const double ahead = other_host ? 1000.0 * world.rank() : 0;
    const ClockReading reading =
        compare_with_rank_0(world, other_host ? "there" : "here", [&] { return now_seconds() + ahead; });
    EXPECT_EQ(reading.error > 0, other_host);
    EXPECT_LE(std::abs(reading.offset + ahead), reading.error);
    const ClockReading same = compare_with_rank_0(world, clock_name(), [&] { return now_seconds() + ahead; });
    EXPECT_EQ(same.offset, 0);
  });
}

// ---- slices on tracks

Record record_of(const std::string& stream, double begin, double end) {
  Record record;
  record.stream = stream;
  record.times = {begin, begin, end, 0};
  return record;
}

std::vector<std::string> texts_of(const TraceTracks& tracks) {
  std::map<int, std::string> names;
  for (const TraceTrack& track : tracks.tracks) names[track.id] = track.name;
  std::vector<std::string> texts;
  for (const TraceSlice& slice : tracks.slices) {
    texts.push_back(names.at(slice.track) + ": " + slice.name + " " + std::to_string(slice.begin) + ".." +
                    std::to_string(slice.end));
  }
  return texts;
}

TEST(TraceTracks, AreOneForTheThreadAndOneForEveryStream) {
  const std::vector<Record> records{record_of("tp", 2e-6, 3e-6), record_of("dp", 1e-6, 5e-6), record_of("tp", 4e-6, 6e-6),
                                    record_of("inline", 7e-6, 8e-6), record_of("dp", 9e-6, 0)};
  const TraceTracks tracks =
      lay_out({{"gemm", 5e-6, 6e-6}}, records, {{"step 1", "step", 0, 9e-6}, {"half", "part", 4e-6, 0}}, own_clock, 9e-6);
  EXPECT_THAT(texts_of(tracks),
              ElementsAre("steps: step 1 0..9000", "steps: half 4000..9000", "computing thread: gemm 5000..6000",
                          "computing thread: all_reduce 7000..8000", "tp: all_reduce 2000..3000",
                          "tp: all_reduce 4000..6000", "dp: all_reduce 1000..5000"));
  EXPECT_EQ(tracks.tracks.at(1).id, 0);
  EXPECT_EQ(tracks.tracks.at(2).id, 1);
  EXPECT_EQ(tracks.tracks.at(3).id, 2);
}

TEST(TraceTracks, HoldNoSlicesThatCross) {
  // Two streams of one name, and a group of operations, whose times are the same.
  const std::vector<Record> records{record_of("dp", 1e-3, 5e-3), record_of("dp", 3e-3, 7e-3), record_of("dp", 6e-3, 9e-3),
                                    record_of("dp", 6e-3, 9e-3)};
  EXPECT_THAT(texts_of(lay_out({}, records, {}, own_clock, 1)),
              ElementsAre("dp: all_reduce 1000000..5000000", "dp (2): all_reduce 3000000..7000000",
                          "dp: all_reduce 6000000..9000000", "dp: all_reduce 6000000..9000000"));
  // What only seems to cross, by the difference of two clocks.
  EXPECT_THAT(texts_of(lay_out({{"gemm", 0, 20e-6}}, {record_of("inline", 19e-6, 30e-6)}, {}, own_clock, 1)),
              ElementsAre("computing thread: gemm 0..20000", "computing thread: all_reduce 20000..30000"));
}

// ---- arrows

std::vector<std::pair<int, int>> ends_of(const std::vector<TraceArrow>& arrows) {
  std::vector<std::pair<int, int>> ends;
  for (const TraceArrow& arrow : arrows) ends.emplace_back(arrow.from.rank, arrow.to.rank);
  std::sort(ends.begin(), ends.end());
  return ends;
}

RankArrows part_of(int rank, Partners partners, Collective collective = Collective::all_reduce, int times = 1) {
  std::vector<Record> records;
  for (int i = 0; i < times; ++i) {
    records.push_back(record_of("dp", i + 1, i + 1.5));
    records.back().collective = collective;
    records.back().partners = std::make_shared<const Partners>(partners);
  }
  const TraceTracks tracks = lay_out({}, records, {}, own_clock, 9);
  return arrows_of(rank, records, tracks.slices);
}

RankArrows together(const std::vector<RankArrows>& ranks) {
  RankArrows all;
  for (const RankArrows& rank : ranks) {
    all.parts.insert(all.parts.end(), rank.parts.begin(), rank.parts.end());
    all.transmissions.insert(all.transmissions.end(), rank.transmissions.begin(), rank.transmissions.end());
  }
  return all;
}

TEST(TraceArrows, NeedToBeSaidByOneSideOnly) {
  const std::vector<int> members{4, 7};
  const auto four = [&](std::vector<int> to) { return part_of(4, {3, members, std::move(to), {}}); };
  const auto seven = [&](std::vector<int> from) { return part_of(7, {3, members, {}, std::move(from)}); };
  const auto one = ElementsAre(std::pair(4, 7));
  EXPECT_THAT(ends_of(pair_up(together({four({7}), seven({4})}))), one);
  EXPECT_THAT(ends_of(pair_up(together({four({}), seven({4})}))), one);
  EXPECT_THAT(ends_of(pair_up(together({four({7}), seven({})}))), one);
  EXPECT_THAT(ends_of(pair_up(together({four({}), seven({})}))), IsEmpty());
  EXPECT_THAT(ends_of(pair_up(four({7}))), IsEmpty()) << "the other one has no part in it";
  EXPECT_THAT(ends_of(pair_up(together({four({7}), part_of(7, {5, members, {}, {4}})}))), IsEmpty()) << "another group";
}

TEST(TraceArrows, CountMessagesByTheirEnds) {
  const std::vector<int> members{0, 1};
  const auto sent = part_of(0, {0, members, {1}, {}}, Collective::send, 2);
  const auto received = part_of(1, {0, members, {}, {0}}, Collective::recv, 3);
  const std::vector<TraceArrow> arrows = pair_up(together({sent, received}));
  ASSERT_EQ(arrows.size(), 2U);
  for (const TraceArrow& arrow : arrows) EXPECT_EQ(arrow.from.begin, arrow.to.begin) << "the first with the first";
}

TEST(Records, SayBetweenWhomBytesMove) {
  run_threads(3, [](const Communicator& world) {
    const Communicator turned = world.split(0, -world.rank(), "turned");
    EXPECT_THAT(turned.job_ranks(), ElementsAre(2, 1, 0));
    const std::uint64_t first = world.ledger().next_sequence();
    const Tensor data = Tensor::zeros({300}, DType::f32);
    const OperationOptions ring{.method = Algorithm::ring};
    world.all_reduce(data, ReduceOp::sum, Stream::inline_(), ring);
    turned.all_reduce(data, ReduceOp::sum, Stream::inline_(), ring);
    if (world.rank() == 0) world.send(data.raw(), 10, DType::f32, 2, Stream::inline_());
    if (world.rank() == 2) world.recv(data.raw(), 10, DType::f32, 0, Stream::inline_());
    const std::vector<Record> records = world.ledger().records(first);
    const int next = (world.rank() + 1) % 3;
    const int previous = (world.rank() + 2) % 3;
    EXPECT_THAT(records.at(0).partners->sends_to, ElementsAre(next));
    EXPECT_THAT(records.at(0).partners->receives_from, ElementsAre(previous));
    EXPECT_THAT(records.at(1).partners->members, ElementsAre(2, 1, 0));
    EXPECT_THAT(records.at(1).partners->sends_to, ElementsAre(previous));
    EXPECT_THAT(records.at(1).partners->receives_from, ElementsAre(next));
    EXPECT_NE(records.at(0).partners->group_id, records.at(1).partners->group_id);
    if (world.rank() == 0) {
      EXPECT_THAT(records.at(2).partners->sends_to, ElementsAre(2));
    }
    if (world.rank() == 2) {
      EXPECT_THAT(records.at(2).partners->receives_from, ElementsAre(0));
    }
  });
}

// ---- the file

constexpr int steps = 3;

void some_steps(const Communicator& world, Trace& trace, const Stream& stream) {
  const Tensor data = Tensor::zeros({3000}, DType::f32);
  const Tensor other = Tensor::zeros({3000}, DType::f32);
  for (int step = 1; step <= steps; ++step) {
    const Trace::Span whole = trace.step(step);
    const Work sum = world.all_reduce(data, ReduceOp::sum, stream, {.method = Algorithm::ring, .tag = "a \"tag\""});
    const Trace::Span part = trace.part("beside it");
    kernels::add(other, other, other);
    sum.wait();
    world.broadcast(data, 1, Stream::inline_(), {.method = Algorithm::binomial});
  }
}

TEST(Trace, SaysWhatEveryRankDid) {
  const Directory directory;
  const std::string path = directory / "trace.json";
  std::array<std::uint64_t, 3> bytes{};
  run_threads(3, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    const std::uint64_t first = world.ledger().next_sequence();
    some_steps(world, trace, stream);
    bytes[world.rank()] = world.ledger().traffic(first).bytes_sent;
    trace.write(path);
  });
  EXPECT_THAT(directory.files(), ElementsAre("trace.json"));
  const json trace = parsed(path);
  std::array<std::uint64_t, 3> said{};
  for (const json& event : events_of(trace, "X", "communication")) {
    const bool on_stream = event["name"] == "all_reduce";
    EXPECT_EQ(event["tid"], on_stream ? 1 : 0);
    EXPECT_EQ(event["args"]["algorithm"], on_stream ? "ring" : "binomial");
    EXPECT_EQ(event["args"]["tag"], on_stream ? "a \"tag\"" : "");
    EXPECT_EQ(event["args"]["count"], 3000);
    said[event["pid"].get<int>()] += event["args"]["bytes"].get<std::uint64_t>();
  }
  EXPECT_EQ(said, bytes);
  EXPECT_EQ(events_of(trace, "X", "communication").size(), 3U * steps * 2);
  EXPECT_EQ(events_of(trace, "X", "compute").size(), 3U * steps);
  EXPECT_EQ(events_of(trace, "X", "step").size(), 3U * steps);
  EXPECT_EQ(events_of(trace, "X", "part").size(), 3U * steps);
  EXPECT_EQ(trace["otherData"]["lost_operations"], json({0, 0, 0}));

  // In each step three arrows of the ring, and two from rank 1.
  std::map<int, std::pair<int, double>> begun;
  for (const json& event : events_of(trace, "s")) begun[event["id"]] = {event["pid"], event["ts"]};
  std::multiset<std::pair<int, int>> arrows;
  for (const json& event : events_of(trace, "f")) {
    const auto& [from, at] = begun.at(event["id"]);
    arrows.emplace(from, event["pid"].get<int>());
    if (event["tid"] == 1) {
      EXPECT_LE(at, event["ts"].get<double>());
    }
  }
  const std::multiset<std::pair<int, int>> in_a_step{{0, 1}, {1, 2}, {2, 0}, {1, 2}, {1, 0}};
  std::multiset<std::pair<int, int>> expected;
  for (int step = 0; step < steps; ++step) expected.insert(in_a_step.begin(), in_a_step.end());
  EXPECT_EQ(arrows, expected);
  EXPECT_EQ(begun.size(), expected.size());
}

TEST(Trace, GoesOnBehindAFile) {
  const Directory directory;
  run_threads(2, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    some_steps(world, trace, stream);
    trace.write(directory / "first.json");
    some_steps(world, trace, stream);
    trace.write(directory / "second.json");
  });
  const auto operations = [&](const char* file) { return events_of(parsed(directory / file), "X", "communication").size(); };
  EXPECT_EQ(operations("first.json"), 2U * steps * 2);
  EXPECT_EQ(operations("second.json"), 2U * steps * 4) << "without what the first one sent";
}

TEST(Trace, LeavesArrowsOutWhereOperationsWereLost) {
  const Directory directory;
  for (const bool harvested : {false, true}) {
    const Variable variable("STRETTO_LEDGER", "8");
    run_threads(2, [&](const Communicator& world) {
      const Tensor data = Tensor::zeros({3}, DType::f32);
      Trace trace(world);
      for (int i = 0; i < 20; ++i) {
        if (harvested) const Trace::Span span = trace.step(i);
        world.all_reduce(data, ReduceOp::sum, Stream::inline_(), {.method = Algorithm::ring});
      }
      trace.write(directory / "trace.json");
    });
    const json trace = parsed(directory / "trace.json");
    EXPECT_EQ(trace["otherData"]["lost_operations"], harvested ? json({0, 0}) : json({12, 12}));
    EXPECT_EQ(trace["otherData"].contains("arrows_left_out"), !harvested);
    EXPECT_EQ(events_of(trace, "s").size(), harvested ? 2U * 20 : 0U);
  }
}

TEST(Trace, IsWholeOrNotThere) {
  const Directory directory;
  std::filesystem::create_symlink("/dev/full", directory / "full.json.new");
  std::filesystem::create_directory(directory / "folder");
  run_threads(2, [&](const Communicator& world) {
    Trace trace(world);
    const Stream stream("dp");
    some_steps(world, trace, stream);
    for (const char* file : {"nowhere/trace.json", "full.json", "folder"}) {
      try {
        trace.write(directory / file);
        EXPECT_EQ(world.rank(), 1) << file;
      } catch (const Error& error) {
        EXPECT_EQ(world.rank(), 0);
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_THAT(error.what(), HasSubstr(std::string(file) + " cannot be written: "));
      }
    }
    trace.write(directory / "trace.json");
  });
  EXPECT_THAT(directory.files(), testing::UnorderedElementsAre("folder", "trace.json"));
  EXPECT_THROW(Trace::check_writable(directory / "nowhere/trace.json"), Error);
  EXPECT_THROW(Trace::check_writable(directory / "folder"), Error);
  Trace::check_writable(directory / "trace.json");
  Trace::check_writable(directory / "other.json");
  EXPECT_THAT(directory.files(), testing::UnorderedElementsAre("folder", "trace.json"));
}

TEST(Trace, IsOneAThread) {
  run_threads(1, [](const Communicator& world) {
    {
      const Trace trace(world);
      EXPECT_NE(kernel_spans, nullptr);
      EXPECT_THROW(const Trace second(world), Error);
    }
    EXPECT_EQ(kernel_spans, nullptr);
    const Trace again(world);
  });
}

}  // namespace
}  // namespace stretto
