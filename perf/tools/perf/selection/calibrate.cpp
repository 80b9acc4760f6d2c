#include "perf/verbs.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "perf/sweep.hpp"
#include "stretto/device.hpp"
#include "stretto/launch.hpp"

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

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// --this-machine: starts jobs that measure as the first job on a machine does.
int measure_for_all_jobs(const SweepOptions& options) {
  setenv("STRETTO_CALIBRATE", "now", 1);
  const std::string path = stretto::Tuning::measurements_path(false);
  for (const int ranks : options.ranks) {
    const std::string before = text_of(path);
    const int status = stretto::launch(ranks, [](const stretto::Communicator&) {});
    if (status != 0) return status;
    if (text_of(path) == before) {
      fail(stretto::ErrorCode::unavailable, "The machine was too busy to be measured with {} ranks; {} is as it was.", ranks,
           path);
    }
    std::printf("Measured with %d ranks, and kept in %s.\n", ranks, path.c_str());
  }
  return 0;
}

// The routes of an existing file, which --keep keeps.
nlohmann::ordered_json kept_routes(const std::string& path) {
  const std::string text = text_of(path);
  if (text.empty()) return nlohmann::ordered_json::array();
  stretto::Tuning::from_json(text, path);  // throws if it is no tuning file
  return nlohmann::ordered_json::parse(text).at("routes");
}

}  // namespace

int calibrate(int argc, char** argv) {
  const SweepOptions options = parse_sweep("Measures this machine and writes a tuning file", argc, argv, true);
  if (options.this_machine) return measure_for_all_jobs(options);
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
