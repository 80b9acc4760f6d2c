#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/stream/kernel_scope.hpp"
#include "overlap/tracing/trace_clock.hpp"
#include "stretto/ledger.hpp"

// One rank's part of a trace: slices on tracks, as trace viewers draw them.
namespace stretto {

struct NamedSpan {
  std::string name;
  const char* category;
  double begin, end;  // seconds of this rank's clock; end 0: the span has not ended
};

struct TraceSlice {
  int track = 0;
  std::int64_t begin = 0, end = 0;  // nanoseconds on rank 0's clock
  std::string name;
  const char* category = "";
  const Record* record = nullptr;  // of an operation; a kernel or span has none
  double operations = 0;           // of a kernel that is a matrix product
};

struct TraceTrack {
  int id;
  std::string name;
};

struct TraceTracks {
  static constexpr int computing_thread = 0;
  static constexpr int steps = 1000000;  // above the ids of all streams
  std::vector<TraceTrack> tracks;
  std::vector<TraceSlice> slices;  // track by track, in the order of their beginnings, outer slices before inner ones
};

// The records must outlive the slices. Operations that are not done have no slice. A span that has not ended ends at `now`.
TraceTracks lay_out(const std::vector<KernelSpan>& kernels, const std::vector<Record>& operations,
                    const std::vector<NamedSpan>& spans, const ClockLine& clock, double now);

}  // namespace stretto
