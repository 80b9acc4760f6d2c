#include "overlap/tracing/trace_tracks.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Two clocks tell the times of one thread: that of kernels and streams, and the counter of operations that run at once.
constexpr std::int64_t clocks_apart = 10'000;

std::string arguments_of(const Record& record) {
  const nlohmann::ordered_json arguments{
      {"bytes", record.bytes_sent},
      {"bytes_between_nodes", record.bytes_between_nodes},
      {"count", record.count},
      {"dtype", record.quantized == QuantizedFormat::none ? name(record.dtype) : name(record.quantized)},
      {"algorithm", name(record.algorithm)},
      {"group", record.group},
      {"group_size", record.group_size},
      {"stream", record.stream},
      {"tag", record.tag},
      {"waited_us", record.shares_times ? 0 : std::round(record.times.waited * 1e9) * 1e-3}};
  return arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Viewers want slices of a track to lie in one another or apart. Those of a stream do, unless two streams have its name:
// then there is a further track.
class Lane {
 public:
  bool take(TraceSlice& slice) {
    std::vector<std::int64_t> open = open_;
    std::int64_t begin = slice.begin;
    while (!open.empty() && open.back() < slice.end) {
      if (open.back() > begin + clocks_apart) return false;
      begin = std::max(begin, open.back());
      open.pop_back();
    }
    slice.begin = begin;
    open.push_back(slice.end);
    open_ = std::move(open);
    return true;
  }

 private:
  std::vector<std::int64_t> open_;  // the ends of the slices around
};

// By the earliest beginning, the outermost first.
void sort_by_time(std::vector<TraceSlice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const TraceSlice& a, const TraceSlice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
}

class Layout {
 public:
  explicit Layout(const ClockLine& clock) : clock_(clock) {}

  // first: of the track's number; further ones are counted on from the last stream's.
  void add(const std::string& name, std::vector<TraceSlice> slices, int first) {
    sort_by_time(slices);
    std::vector<std::pair<int, Lane>> lanes;
    for (TraceSlice& slice : slices) {
      auto lane = std::find_if(lanes.begin(), lanes.end(), [&](auto& each) { return each.second.take(slice); });
      if (lane == lanes.end()) {
        const int track = lanes.empty() && first >= 0 ? first : next_stream_++;
        result_.tracks.push_back({track, lanes.empty() ? name : fmt::format("{} ({})", name, lanes.size() + 1)});
        lane = lanes.insert(lanes.end(), {track, Lane()});
        lane->second.take(slice);
      }
      slice.track = lane->first;
      result_.slices.push_back(std::move(slice));
    }
  }

  TraceSlice slice(double begin, double end, std::string name, const char* category) const {
    return {.begin = nanoseconds(begin),
            .end = nanoseconds(end),
            .name = std::move(name),
            .category = category,
            .arguments = {},
            .record = nullptr};
  }

  TraceTracks take() { return std::move(result_); }

 private:
  std::int64_t nanoseconds(double here) const { return std::llround(clock_.there(here) * 1e9); }

  const ClockLine& clock_;
  TraceTracks result_;
  int next_stream_ = 1;
};

}  // namespace

TraceTracks lay_out(const std::vector<KernelSpan>& kernels, const std::vector<Record>& operations,
                    const std::vector<NamedSpan>& spans, const ClockLine& clock, double now) {
  Layout layout(clock);
  std::vector<TraceSlice> steps;
  steps.reserve(spans.size());
  for (const NamedSpan& span : spans) {
    steps.push_back(layout.slice(span.begin, span.end > 0 ? span.end : now, span.name, span.category));
  }
  std::vector<TraceSlice> computing;
  computing.reserve(kernels.size());
  for (const KernelSpan& span : kernels) {
    computing.push_back(layout.slice(span.begin, span.end, span.kernel, "compute"));
  }
  std::map<std::string, std::vector<TraceSlice>> of_stream;
  std::vector<std::string> streams;  // in the order of first use
  for (const Record& record : operations) {
    if (record.times.done == 0 || record.times.started == 0) continue;
    TraceSlice slice =
        layout.slice(record.times.started, record.times.done, stretto::name(record.collective), "communication");
    slice.arguments = arguments_of(record);
    slice.record = &record;
    const bool is_inline = record.stream == Stream::inline_().name();
    if (!is_inline && !of_stream.contains(record.stream)) streams.push_back(record.stream);
    (is_inline ? computing : of_stream[record.stream]).push_back(std::move(slice));
  }
  layout.add("steps", std::move(steps), TraceTracks::steps);
  layout.add("computing thread", std::move(computing), TraceTracks::computing_thread);
  for (const std::string& stream : streams) layout.add(stream, std::move(of_stream[stream]), -1);
  return layout.take();
}

}  // namespace stretto
