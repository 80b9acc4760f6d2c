#include "overlap/tracing/trace_tracks.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/fail.hpp"

namespace stretto {
namespace {

// Two clocks give the times on one thread: one for kernels and streams, and the counter of operations that run inline.
// Slices may seem to cross by up to this many nanoseconds.
constexpr std::int64_t clocks_apart = 10'000;

// One track. Viewers need the slices of a track to be nested or disjoint. A stream's slices are, unless two streams have its
// name: then there is a further track.
class NestedTrack {
 public:
  // False if the slice would cross one of the track. Moves its beginning where only the clocks' difference makes it cross.
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
  std::vector<std::int64_t> open_;  // the ends of the slices that enclose the latest one
};

// By beginning; of slices that begin together, the longest first.
void sort_by_time(std::vector<TraceSlice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const TraceSlice& a, const TraceSlice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
}

class TrackLayout {
 public:
  explicit TrackLayout(const ClockLine& clock) : clock_(clock) {}

  // first: the id of the first track, or -1; it and all further tracks then take the next ids after the last stream's.
  void add(const std::string& name, std::vector<TraceSlice> slices, int first) {
    sort_by_time(slices);
    std::vector<std::pair<int, NestedTrack>> tracks;
    for (TraceSlice& slice : slices) {
      auto track = std::find_if(tracks.begin(), tracks.end(), [&](auto& each) { return each.second.take(slice); });
      if (track == tracks.end()) {
        const int id = tracks.empty() && first >= 0 ? first : next_stream_++;
        result_.tracks.push_back({id, tracks.empty() ? name : fmt::format("{} ({})", name, tracks.size() + 1)});
        track = tracks.insert(tracks.end(), {id, NestedTrack()});
        track->second.take(slice);
      }
      slice.track = track->first;
      result_.slices.push_back(std::move(slice));
    }
  }

  TraceSlice slice(double begin, double end, std::string name, const char* category) const {
    return {.begin = nanoseconds(begin),
            .end = nanoseconds(end),
            .name = std::move(name),
            .category = category,
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
  TrackLayout layout(clock);
  std::vector<TraceSlice> steps;
  steps.reserve(spans.size());
  for (const NamedSpan& span : spans) {
    steps.push_back(layout.slice(span.begin, span.end > 0 ? span.end : now, span.name, span.category));
  }
  std::vector<TraceSlice> computing;
  computing.reserve(kernels.size());
  for (const KernelSpan& span : kernels) {
    computing.push_back(layout.slice(span.begin, span.end, span.kernel, "compute"));
    computing.back().operations = span.operations;
  }
  std::map<std::string, std::vector<TraceSlice>> of_stream;
  std::vector<std::string> streams;  // in the order of first use
  for (const Record& record : operations) {
    if (record.times.done == 0 || record.times.started == 0) continue;
    TraceSlice slice =
        layout.slice(record.times.started, record.times.done, stretto::name(record.collective), "communication");
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
