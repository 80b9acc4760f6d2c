#pragma once
#include <string>

#include "overlap/tracing/trace_arrows.hpp"
#include "overlap/tracing/trace_tracks.hpp"

// Events of Chrome's trace-event format, a line each with a comma behind it. Times count from `zero`.
namespace stretto {

std::string text_of(const TraceTracks& rank_tracks, int rank, std::int64_t zero);
// The arrow begins with the sender's slice and ends inside the receiver's.
std::string text_of(const TraceArrow& arrow, std::size_t number, std::int64_t zero);

}  // namespace stretto
