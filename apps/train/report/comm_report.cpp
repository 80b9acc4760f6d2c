#include "apps/train/report/comm_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "stretto/output_file.hpp"

namespace apps {

std::string comm_report(const stretto::OverlapTimes& times) {
  const auto [shorter, longer] = std::minmax(times.computation, times.communication);
  const bool little = shorter < 0.05 * longer;
  return fmt::format(
      "\nA step, run in four ways: full {:.1f} ms, computation only {:.1f} ms, communication only {:.1f} ms, serial {:.1f} "
      "ms\n"
      "Exposed communication: {:.1f} ms. Efficiency of overlap (the hidden part of the shorter of computation and "
      "communication): {:.2f}{}",
      times.full * 1e3, times.computation * 1e3, times.communication * 1e3, times.serial * 1e3, times.exposed() * 1e3,
      times.efficiency(), little ? " (too short to measure: this is noise)" : "");
}

void write_comm_report(const stretto::OverlapTimes& times, const std::string& log_directory) {
  nlohmann::ordered_json figures;
  for (const auto& [name, value] : times.figures()) figures[name] = value;
  const std::string path = log_directory + "/comm_report.json";
  stretto::write_output_file(path, figures.dump(1) + '\n');
}

}  // namespace apps
