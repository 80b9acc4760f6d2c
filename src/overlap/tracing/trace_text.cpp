#include "overlap/tracing/trace_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>

namespace stretto {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Whole nanoseconds, so that what touches still touches.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}{}.{:03}", nanoseconds < 0 ? "-" : "", std::abs(nanoseconds) / 1000, std::abs(nanoseconds) % 1000);
}

}  // namespace

std::string text_of(const TraceTracks& rank_tracks, int rank, std::int64_t zero) {
  std::string text = fmt::format(R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}},)"
                                 "\n"
                                 R"({{"ph":"M","pid":{0},"name":"process_sort_index","args":{{"sort_index":{0}}}}},)"
                                 "\n",
                                 rank);
  const auto out = std::back_inserter(text);
  for (const TraceTrack& track : rank_tracks.tracks) {
    fmt::format_to(out,
                   R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_name","args":{{"name":{2}}}}},)"
                   "\n"
                   R"({{"ph":"M","pid":{0},"tid":{1},"name":"thread_sort_index","args":{{"sort_index":{3}}}}},)"
                   "\n",
                   rank, track.id, quoted(track.name), track.id == TraceTracks::steps ? -1 : track.id);
  }
  for (const TraceSlice& slice : rank_tracks.slices) {
    fmt::format_to(out,
                   R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}"{}{}}},)"
                   "\n",
                   rank, slice.track, microseconds(slice.begin - zero), microseconds(slice.end - slice.begin),
                   quoted(slice.name), slice.category, slice.arguments.empty() ? "" : R"(,"args":)", slice.arguments);
  }
  return text;
}

std::string text_of(const TraceArrow& arrow, std::size_t number, std::int64_t zero) {
  const auto end = [&](const char* phase, const OperationPart& part, std::int64_t at) {
    return fmt::format(R"({{"ph":"{}",{}"id":{},"pid":{},"tid":{},"ts":{},"name":"transfer","cat":"transfer"}},)"
                       "\n",
                       phase, *phase == 'f' ? R"("bp":"e",)" : "", number, part.rank, part.track, microseconds(at - zero));
  };
  return end("s", arrow.from, arrow.from.begin) + end("f", arrow.to, std::max(arrow.to.begin, arrow.to.end - 1));
}

}  // namespace stretto
