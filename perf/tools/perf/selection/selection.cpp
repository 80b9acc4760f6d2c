#include "perf/verbs.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/output_file.hpp"
#include "perf/options.hpp"
#include "perf/sweep.hpp"

namespace perf {

int check_selection(int argc, char** argv) {
  const SweepOptions options = parse_sweep("Compares the library's choices with every fixed method", argc, argv, false);
  double worst = 1;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%-9s %-15s %5s %10s  %-28s %10s  %-28s %10s  %6s\n", "memory", "collective", "ranks", "bytes", "chosen", "us",
              "fastest", "us", "ratio");
  for (const std::string& route : options.routes) {
    for (const int ranks : options.ranks) {
      for (const Memory memory : options.memories_of(route)) {
        for (const SizeTimes& times : sweep(options, route, ranks, memory)) {
          const stretto::MethodTime& fastest = times.fastest();
          const double chosen = times.of(times.chosen);
          const double ratio = chosen / fastest.seconds;
          worst = std::max(worst, ratio);
          std::printf("%-9s %-15s %5d %10lld  %-28s %10.2f  %-28s %10.2f  %6.2f%s\n", name_of(memory),
                      name(times.request.collective), ranks, static_cast<long long>(times.bytes),
                      to_string(times.chosen).c_str(), chosen * 1e6, to_string(fastest.method).c_str(),
                      fastest.seconds * 1e6, ratio, ratio > 1 + options.tolerance ? "  <" : "");
          nlohmann::ordered_json row = json_of(times);
          row["route"] = route;
          row["memory"] = name_of(memory);
          rows.push_back(row);
        }
      }
    }
  }
  std::printf("The worst choice takes %.2f times as long as the fastest method.\n", worst);
  if (!options.file.empty()) write_file("--json", options.file, rows.dump(1) + "\n");
  return worst > 1 + options.tolerance ? 1 : 0;
}

}  // namespace perf
