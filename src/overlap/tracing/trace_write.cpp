#include "overlap/tracing/trace_write.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/fail.hpp"
#include "overlap/tracing/trace_text.hpp"
#include "overlap/tracing/whole_file.hpp"

namespace stretto {
namespace {

constexpr std::size_t most_arrows = 500'000;  // about 100 MB

// How much of what a rank will send.
struct Announcement {
  std::int64_t text_bytes, parts, transmissions, lost, clock_error_ns;
};
constexpr std::int64_t announced = sizeof(Announcement) / sizeof(std::int64_t);

template <class Values>
void send(const Communicator& world, const Values& values) {
  world.send(values.data(), static_cast<std::int64_t>(values.size() * sizeof values[0]), DType::u8, 0, Stream::inline_());
}

template <class Values>
void receive(const Communicator& world, Values& values, std::int64_t more, int rank) {
  const std::size_t had = values.size();
  values.resize(had + static_cast<std::size_t>(more));
  world.recv(values.data() + had, more * static_cast<std::int64_t>(sizeof values[0]), DType::u8, rank, Stream::inline_());
}

std::int64_t earliest(const Communicator& world, const TraceTracks& tracks) {
  std::int64_t begin = std::numeric_limits<std::int64_t>::max();
  for (const TraceSlice& slice : tracks.slices) begin = std::min(begin, slice.begin);
  world.all_reduce(&begin, &begin, 1, DType::i64, ReduceOp::min, Stream::inline_());
  return begin;
}

// The list of events, without a comma behind the last.
class EventList {
 public:
  explicit EventList(WholeFile& file) : file_(file) { file_.write("{\"traceEvents\":["); }
  void add(std::string_view text) {
    file_.write(is_first_ ? "\n" : ",\n");
    is_first_ = false;
    file_.write(text.substr(0, text.size() - 2));
  }
  void end(const nlohmann::ordered_json& about) {
    file_.write("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":" + about.dump() + "}\n");
  }

 private:
  WholeFile& file_;
  bool is_first_ = true;
};

nlohmann::ordered_json about(const std::vector<Announcement>& ranks) {
  nlohmann::ordered_json lost = nlohmann::json::array();
  nlohmann::ordered_json errors = nlohmann::json::array();
  for (const Announcement& rank : ranks) {
    lost.push_back(rank.lost);
    errors.push_back(static_cast<double>(rank.clock_error_ns) * 1e-3);
  }
  return {{"program", "Stretto"}, {"ranks", ranks.size()}, {"lost_operations", lost}, {"clock_error_us", errors}};
}

}  // namespace

void write_trace(const Communicator& world, const RankTrace& mine, const std::string& path) {
  const std::int64_t zero = earliest(world, mine.tracks);
  std::string text = text_of(mine.tracks, mine.rank, zero);
  const Announcement what{static_cast<std::int64_t>(text.size()), static_cast<std::int64_t>(mine.arrows.parts.size()),
                          static_cast<std::int64_t>(mine.arrows.transmissions.size()), static_cast<std::int64_t>(mine.lost),
                          static_cast<std::int64_t>(mine.clock_error * 1e9)};
  std::vector<Announcement> ranks(static_cast<std::size_t>(world.size()));
  world.all_gather(&what, ranks.data(), announced, DType::i64, Stream::inline_());
  if (world.rank() != 0) {
    send(world, text);
    send(world, mine.arrows.parts);
    send(world, mine.arrows.transmissions);
    return;
  }

  WholeFile file(path);
  EventList events(file);
  events.add(text);
  RankArrows all = mine.arrows;
  for (int rank = 1; rank < world.size(); ++rank) {
    const Announcement& theirs = ranks[static_cast<std::size_t>(rank)];
    text.clear();
    receive(world, text, theirs.text_bytes, rank);
    receive(world, all.parts, theirs.parts, rank);
    receive(world, all.transmissions, theirs.transmissions, rank);
    events.add(text);
  }
  nlohmann::ordered_json summary = about(ranks);
  const bool lost = std::any_of(ranks.begin(), ranks.end(), [](const Announcement& rank) { return rank.lost > 0; });
  const std::vector<TraceArrow> arrows = lost ? std::vector<TraceArrow>() : pair_up(std::move(all));
  const std::size_t drawn = std::min(arrows.size(), most_arrows);
  for (std::size_t i = 0; i < drawn; ++i) events.add(text_of(arrows[i], i, zero));
  summary["arrows"] = drawn;
  if (lost) summary["arrows_left_out"] = "operations were lost, so that nobody knows which belong together";
  if (drawn < arrows.size()) {
    summary["arrows_left_out"] = fmt::format("{} of {}: more than {}", arrows.size() - drawn, arrows.size(), most_arrows);
  }
  events.end(summary);
  file.finish();
}

}  // namespace stretto
