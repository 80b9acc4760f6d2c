#pragma once
#include <string>
#include <vector>

#include "overlap/tracing/trace_arrows.hpp"
#include "overlap/tracing/trace_tracks.hpp"

// The text of Chrome's trace-event format: each event is a line that ends with a comma. Times count from `zero`, in
// nanoseconds.
namespace stretto {

// The records of the slices must still exist.
std::string text_of(const TraceTracks& rank_tracks, int rank, std::int64_t zero);
// The arrow begins where the sender's slice begins and ends inside the receiver's slice.
std::string text_of(const TraceArrow& arrow, std::size_t number, std::int64_t zero);
// The file's "otherData": a JSON object, by rank where a member is a vector.
struct TraceSummary {
  std::vector<std::uint64_t> lost_operations;
  std::vector<double> clock_error_us;
  std::size_t arrows = 0;
  std::string arrows_left_out = {};  // the reason; empty if all arrows are in the file
};
std::string text_of(const TraceSummary& summary);

}  // namespace stretto
