#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "perf/buffers.hpp"
#include "perf/selection/method_times.hpp"

namespace perf {

// The options of calibrate and selection.
struct SweepOptions {
  std::vector<int> ranks = {2, 3, 4, 8};
  std::vector<std::string> routes = {"shm"};
  std::vector<Memory> memories = {Memory::ordinary, Memory::symmetric};
  std::vector<stretto::Collective> collectives = stretto::timed_collectives();
  std::int64_t most_bytes = 64 << 20;
  int factor = 4;
  int runs = 3;
  std::string file;
  bool keep = false;          // calibrate
  bool this_machine = false;  // calibrate
  double tolerance = 0.1;     // selection

  // Over ucx, all memory is alike.
  std::vector<Memory> memories_of(const std::string& route) const;
};
// Parses the options of calibrate, which writes a tuning file, or of selection. Exits after --help.
SweepOptions parse_sweep(const char* description, int argc, char** argv, bool writes);

// The medians of several runs, each by new processes; reports progress on stderr. Must be called before this process has
// threads.
std::vector<SizeTimes> sweep(const SweepOptions& options, const std::string& route, int ranks, Memory memory);

// {"collective", "ranks", "bytes", "count", "chosen", "us": {method: microseconds}}
nlohmann::ordered_json json_of(const SizeTimes& times);

}  // namespace perf
