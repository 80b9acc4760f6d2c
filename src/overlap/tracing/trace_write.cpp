#include "overlap/tracing/trace_write.hpp"

#include <algorithm>
#include <limits>

#include "core/fail.hpp"
#include "overlap/tracing/trace_text.hpp"
#include "stretto/output_file.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_arrows = 500'000;  // about 100 MB

// Tells rank 0 the sizes of the messages that follow.
struct RankHeader {
  std::int64_t text_bytes, parts, transmissions, lost, clock_error_ns;
};
constexpr std::int64_t header_words = sizeof(RankHeader) / sizeof(std::int64_t);

template <class Values>
void send(const Communicator& world, const Values& values) {
  world.send(values.data(), static_cast<std::int64_t>(values.size() * sizeof values[0]), DType::u8, 0, Stream::inline_())
      .wait();
}

template <class Values>
void receive(const Communicator& world, Values& values, std::int64_t more, int rank) {
  const std::size_t had = values.size();
  values.resize(had + static_cast<std::size_t>(more));
  world.recv(values.data() + had, more * static_cast<std::int64_t>(sizeof values[0]), DType::u8, rank, Stream::inline_())
      .wait();
}

std::int64_t earliest(const Communicator& world, const TraceTracks& tracks) {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const TraceSlice& slice : tracks.slices) begin = std::min(begin, slice.begin);
  world.all_reduce(&begin, &begin, 1, DType::i64, ReduceOp::min, Stream::inline_()).wait();
  return begin;
}

// JSON allows no comma after the last event, so a text's comma is written before the next one.
class EventList {
 public:
  explicit EventList(OutputFile& file) : file_(file) { file_.write("{\"traceEvents\":["); }
  void add(std::string_view text) {
    file_.write(is_first_ ? "\n" : ",\n");
    is_first_ = false;
    file_.write(text.substr(0, text.size() - 2));
  }
  void end(const TraceSummary& summary) {
    file_.write("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":" + text_of(summary) + "}\n");
  }

 private:
  OutputFile& file_;
  bool is_first_ = true;
};

TraceSummary summary_of(const std::vector<RankHeader>& ranks) {
  TraceSummary summary;
  for (const RankHeader& rank : ranks) {
    summary.lost_operations.push_back(static_cast<std::uint64_t>(rank.lost));
    summary.clock_error_us.push_back(static_cast<double>(rank.clock_error_ns) * 1e-3);
  }
  return summary;
}

}  // namespace

void write_trace(const Communicator& world, const RankTrace& mine, const std::string& path) {
  const std::int64_t zero = earliest(world, mine.tracks);
  std::string text = text_of(mine.tracks, mine.rank, zero);
  const RankHeader header{static_cast<std::int64_t>(text.size()), static_cast<std::int64_t>(mine.arrows.parts.size()),
                          static_cast<std::int64_t>(mine.arrows.transmissions.size()), static_cast<std::int64_t>(mine.lost),
                          static_cast<std::int64_t>(mine.clock_error * 1e9)};
  std::vector<RankHeader> ranks(static_cast<std::size_t>(world.size()));
  world.all_gather(&header, ranks.data(), header_words, DType::i64, Stream::inline_()).wait();
  if (world.rank() != 0) {
    send(world, text);
    send(world, mine.arrows.parts);
    send(world, mine.arrows.transmissions);
    return;
  }

  OutputFile file(path);
  EventList events(file);
  events.add(text);
  RankArrows all = mine.arrows;
  for (int rank = 1; rank < world.size(); ++rank) {
    const RankHeader& theirs = ranks[static_cast<std::size_t>(rank)];
    text.clear();
    receive(world, text, theirs.text_bytes, rank);
    receive(world, all.parts, theirs.parts, rank);
    receive(world, all.transmissions, theirs.transmissions, rank);
    events.add(text);
  }
  TraceSummary summary = summary_of(ranks);
  const bool lost = std::any_of(ranks.begin(), ranks.end(), [](const RankHeader& rank) { return rank.lost > 0; });
  const std::vector<TraceArrow> arrows = lost ? std::vector<TraceArrow>() : pair_up(std::move(all));
  const std::size_t drawn = std::min(arrows.size(), most_arrows);
  for (std::size_t i = 0; i < drawn; ++i) events.add(text_of(arrows[i], i, zero));
  summary.arrows = drawn;
  if (lost) summary.arrows_left_out = "operations were lost, so that nobody knows which belong together";
  if (drawn < arrows.size()) {
    summary.arrows_left_out = fmt::format("{} of {}: more than {}", arrows.size() - drawn, arrows.size(), most_arrows);
  }
  events.end(summary);
  file.finish();
}

}  // namespace stretto
