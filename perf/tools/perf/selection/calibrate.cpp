#include "perf/selection/calibrate.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "perf/sweep.hpp"
#include "stretto/device.hpp"

namespace perf {

namespace {

// One set of costs is fitted to both kinds of memory; each kind has a table of its own.
nlohmann::ordered_json measured(const SweepOptions& options, const std::string& route, int ranks) {
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<stretto::CallTimes> all;
  for (const Memory memory : options.memories_of(route)) {
    for (const SizeTimes& times : sweep(options, route, ranks, memory)) all.push_back(times);
  }
  return nlohmann::ordered_json::parse(stretto::measured_route(route, ranks, ranks / cores, all).to_json());
}

std::string circumstances_of(const nlohmann::ordered_json& route) {
  return route.at("route").dump() + route.at("ranks").dump() + route.at("ranks_per_core").dump();
}

// The routes of an existing file, which --keep keeps.
nlohmann::ordered_json kept_routes(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) return nlohmann::ordered_json::array();
  stretto::Tuning::from_json(text, path);  // throws if it is no tuning file
  return nlohmann::ordered_json::parse(text).at("routes");
}

}  // namespace

int calibrate(int argc, char** argv) {
  const SweepOptions options = parse_sweep("Measures this machine and writes a tuning file", argc, argv, true);
  nlohmann::ordered_json json;
  json["machine"] = fmt::format("{}, {} cores", stretto::processor_name(), std::thread::hardware_concurrency());
  json["routes"] = options.keep ? kept_routes(options.file) : nlohmann::ordered_json::array();
  for (const std::string& route : options.routes) {
    for (const int ranks : options.ranks) {
      const nlohmann::ordered_json entry = measured(options, route, ranks);
      std::fprintf(stderr, "%s\n", entry.dump().c_str());
      const auto same = [&](const nlohmann::ordered_json& other) {
        return circumstances_of(other) == circumstances_of(entry);
      };
      const auto place = std::find_if(json["routes"].begin(), json["routes"].end(), same);
      if (place == json["routes"].end()) {
        json["routes"].push_back(entry);
      } else {
        *place = entry;
      }
      write_file("--write", options.file,
                 json.dump(1) + "\n");  // complete after every entry, in case the next one is interrupted
    }
  }
  return 0;
}

}  // namespace perf
