#include "perf/selection/calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "perf/result.hpp"
#include "perf/selection/fit.hpp"
#include "perf/sweep.hpp"

namespace perf {

using stretto::Method;

namespace {

// Every measurement is one equation, cost formula . (alpha, overhead, beta, gamma) = seconds, divided by the seconds.
stretto::LinkCost fitted(const std::vector<SizeTimes>& all) {
  std::vector<std::array<double, 4>> rows;
  std::vector<double> lane_gains;
  for (const SizeTimes& times : all) {
    stretto::PlanRequest request = times.request;
    for (const MethodTime& time : times.methods) {
      request.method = time.method;
      // Its formula assumes wires that carry both directions at once, which memory does not.
      if (time.method.algorithm == stretto::Algorithm::bidirectional_ring) continue;
      if (time.method.lanes > 1) {
        Method half = time.method;
        half.lanes /= 2;
        if (times.bytes >= (1 << 20)) lane_gains.push_back(times.of(half) / time.seconds - 1);
        continue;
      }
      const stretto::Cost cost = cost_of(request);
      constexpr double width = sizeof(float);
      rows.push_back({cost.rounds / time.seconds, cost.messages / time.seconds, cost.sent * width / time.seconds,
                      cost.work * width / time.seconds});
    }
  }
  const std::array<double, 4> x = fit_not_negative(rows);
  std::sort(lane_gains.begin(), lane_gains.end());
  const double lane_gain = lane_gains.empty() ? 0 : std::max(0.0, lane_gains[lane_gains.size() / 2]);
  stretto::LinkCost cost{x[0], x[1], x[2], x[3]};
  cost.lane_gain = lane_gain;
  return cost;
}

double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

// For each size, the method of the sequence with the least product of slowdowns. A change of method counts as a slowdown of
// 5%, since a method that is faster at a single size is often noise.
std::vector<Method> steady_methods(const std::vector<SizeTimes>& sizes) {
  constexpr double change = 0.05;
  struct BestSequence {  // the best sequence that ends with a method at a size
    double cost = 0;
    std::size_t before = 0;  // index of its method at the size before
  };
  std::vector<std::vector<BestSequence>> sequences;
  for (const SizeTimes& size : sizes) {
    std::vector<BestSequence> here(size.methods.size());
    for (std::size_t m = 0; m < here.size(); ++m) {
      const double own = std::log(size.methods[m].seconds / size.fastest().seconds);
      here[m].cost = sequences.empty() ? own : std::numeric_limits<double>::infinity();
      for (std::size_t b = 0; !sequences.empty() && b < sequences.back().size(); ++b) {
        const bool same = sizes[sequences.size() - 1].methods[b].method == size.methods[m].method;
        const double cost = sequences.back()[b].cost + own + (same ? 0 : change);
        if (cost < here[m].cost) here[m] = {cost, b};
      }
    }
    sequences.push_back(std::move(here));
  }
  std::vector<Method> methods(sizes.size());
  std::size_t last = 0;
  for (std::size_t m = 0; m < sequences.back().size(); ++m) {
    if (sequences.back()[m].cost < sequences.back()[last].cost) last = m;
  }
  for (std::size_t i = sizes.size(); i-- > 0;) {
    methods[i] = sizes[i].methods[last].method;
    last = sequences[i][last].before;
  }
  return methods;
}

// The methods as rules. A boundary lies halfway between two sizes, or at the capacity of a packet.
std::string table_of(const std::vector<SizeTimes>& all) {
  std::map<stretto::Collective, std::vector<SizeTimes>> by_collective;
  for (const SizeTimes& times : all) by_collective[times.collective].push_back(times);
  std::string text;
  for (const auto& [collective, sizes] : by_collective) {
    const std::vector<Method> methods = steady_methods(sizes);
    text += fmt::format("{}{}:", text.empty() ? "" : ";", name(collective));
    std::int64_t from = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool last = i + 1 == sizes.size();
      if (!last && methods[i + 1] == methods[i]) continue;
      const double bytes =
          last ? 0 : std::sqrt(static_cast<double>(sizes[i].bytes) * static_cast<double>(sizes[i + 1].bytes));
      auto to = static_cast<std::int64_t>(three_digits(bytes));
      if (methods[i].algorithm == stretto::Algorithm::packet) {
        const bool one_share = collective == stretto::Collective::all_gather || collective == stretto::Collective::gather;
        to = std::min(to, stretto::most_packet_bytes * (one_share ? sizes[i].ranks : 1) + 1);
      }
      text +=
          fmt::format("{}{}-{}:{}", from == 0 ? "" : ",", from, last ? "inf" : fmt::format("{}", to), to_string(methods[i]));
      from = to;
    }
  }
  return text;
}

nlohmann::ordered_json route_json(const std::string& route, int ranks, double ranks_per_core,
                                  const stretto::LinkCost& cost) {
  constexpr double fastest = 1e-13;  // seconds a byte; the cost of anything that was too fast to be measured
  return {{"route", route},
          {"ranks", ranks},
          {"ranks_per_core", three_digits(ranks_per_core)},
          {"alpha_us", three_digits(cost.alpha * 1e6)},
          {"overhead_us", three_digits(cost.overhead * 1e6)},
          {"bandwidth_gbs", three_digits(1e-9 / std::max(cost.beta, fastest))},
          {"local_gbs", three_digits(1e-9 / std::max(cost.gamma, fastest))},
          {"lane_gain", three_digits(cost.lane_gain)}};
}

// One set of costs is fitted to both kinds of memory; each kind has a table of its own.
nlohmann::ordered_json measured(const SweepOptions& options, const std::string& route, int ranks) {
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  std::vector<SizeTimes> all;
  nlohmann::ordered_json tables;
  for (const Memory memory : options.memories_of(route)) {
    const std::vector<SizeTimes> times = sweep(options, route, ranks, memory);
    tables[memory == Memory::symmetric ? "symmetric_table" : "table"] = table_of(times);
    all.insert(all.end(), times.begin(), times.end());
  }
  nlohmann::ordered_json json = route_json(route, ranks, ranks / cores, fitted(all));
  json.update(tables);
  return json;
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
  json["machine"] = fmt::format("{}, {} cores", processor_name(), std::thread::hardware_concurrency());
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
