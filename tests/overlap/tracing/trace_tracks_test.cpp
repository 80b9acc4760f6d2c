// Slices that trace viewers can draw, and arrows between the parts of an operation.
#include "overlap/tracing/trace_tracks.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "overlap/tracing/trace_arrows.hpp"

namespace stretto {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const ClockLine own_clock{ClockReading(), ClockReading()};

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
  // Two streams of one name, and two grouped operations, which have the same times.
  const std::vector<Record> records{record_of("dp", 1e-3, 5e-3), record_of("dp", 3e-3, 7e-3), record_of("dp", 6e-3, 9e-3),
                                    record_of("dp", 6e-3, 9e-3)};
  EXPECT_THAT(texts_of(lay_out({}, records, {}, own_clock, 1)),
              ElementsAre("dp: all_reduce 1000000..5000000", "dp (2): all_reduce 3000000..7000000",
                          "dp: all_reduce 6000000..9000000", "dp: all_reduce 6000000..9000000"));
  // These slices seem to cross only because two clocks give their times.
  EXPECT_THAT(texts_of(lay_out({{"gemm", 0, 20e-6}}, {record_of("inline", 19e-6, 30e-6)}, {}, own_clock, 1)),
              ElementsAre("computing thread: gemm 0..20000", "computing thread: all_reduce 20000..30000"));
}

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

}  // namespace
}  // namespace stretto
