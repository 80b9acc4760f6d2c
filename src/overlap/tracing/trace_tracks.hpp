#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/stream/kernel_scope.hpp"
#include "overlap/tracing/trace_clock.hpp"
#include "stretto/ledger.hpp"

// One rank's part of a trace: slices on tracks, as viewers take them.
namespace stretto {

struct NamedSpan {
  std::string name;
  const char* category;
  double begin, end;  // end 0: it has not ended
};

struct TraceSlice {
  int track = 0;
  std::int64_t begin = 0, end = 0;  // nanoseconds of rank 0's clock
  std::string name;
  const char* category = "";
  std::string arguments;           // JSON, or nothing
  const Record* record = nullptr;  // of an operation
};

struct TraceTrack {
  int id;
  std::string name;
};

struct TraceTracks {
  static constexpr int computing_thread = 0;
  static constexpr int steps = 1000000;  // behind all streams
  std::vector<TraceTrack> tracks;
  std::vector<TraceSlice> slices;  // the earlier ones of a track first, the outer ones before the inner
};

// The records must be there as long as the slices. Of operations that are not done there are none.
TraceTracks lay_out(const std::vector<KernelSpan>& kernels, const std::vector<Record>& operations,
                    const std::vector<NamedSpan>& spans, const ClockLine& clock, double now);

}  // namespace stretto
