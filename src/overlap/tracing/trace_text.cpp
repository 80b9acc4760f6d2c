#include "overlap/tracing/trace_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>

namespace stretto {
namespace {

// Replaces invalid UTF-8: tags and stream names are the caller's.
std::string text_of_json(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string quoted(const std::string& text) { return text_of_json(text); }

std::string arguments_of(const Record& record) {
  return text_of_json({{"bytes", record.bytes_sent},
                       {"bytes_between_nodes", record.bytes_between_nodes},
                       {"count", record.count},
                       {"dtype", record.quantized == QuantizedFormat::none ? name(record.dtype) : name(record.quantized)},
                       {"algorithm", record.method_text()},
                       {"group", record.group},
                       {"group_size", record.group_size},
                       {"stream", record.stream},
                       {"tag", record.tag},
                       {"queued_us", std::round(std::max(0.0, record.times.started - record.times.enqueued) * 1e9) * 1e-3},
                       {"waited_us", record.shares_times ? 0 : std::round(record.times.waited * 1e9) * 1e-3}});
}

std::string arguments_of(const TraceSlice& slice) {
  if (slice.record != nullptr) return R"(,"args":)" + arguments_of(*slice.record);
  return slice.operations > 0 ? fmt::format(R"(,"args":{{"gflop":{:.6g}}})", slice.operations * 1e-9) : "";
}

// Exact to the nanosecond, so that slices that touch still touch in the text.
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
                   R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"name":{},"cat":"{}"{}}},)"
                   "\n",
                   rank, slice.track, microseconds(slice.begin - zero), microseconds(slice.end - slice.begin),
                   quoted(slice.name), slice.category, arguments_of(slice));
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

std::string text_of(const TraceSummary& summary) {
  nlohmann::ordered_json about{{"program", "Stretto"},
                               {"ranks", summary.lost_operations.size()},
                               {"lost_operations", summary.lost_operations},
                               {"clock_error_us", summary.clock_error_us},
                               {"arrows", summary.arrows}};
  if (!summary.arrows_left_out.empty()) about["arrows_left_out"] = summary.arrows_left_out;
  return about.dump();
}

}  // namespace stretto
