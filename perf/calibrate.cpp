#include "calibrate.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "fail.hpp"
#include "fit.hpp"
#include "method_times.hpp"
#include "output_file.hpp"
#include "result.hpp"
#include "size_text.hpp"
#include "stretto/launch.hpp"

namespace perf {

using stretto::Communicator;
using stretto::Method;

namespace {

struct Arguments {
  std::vector<int> ranks = {2, 3, 4, 8};
  std::vector<std::string> routes = {"shm"};
  std::vector<stretto::Collective> collectives = chosen_collectives();
  std::int64_t most_bytes = 64 << 20;
  int factor = 8;
  int runs = 5;
  std::string file;
  double tolerance = 0.1;
};

std::vector<stretto::Collective> collectives_from(const std::vector<std::string>& words) {
  std::vector<stretto::Collective> list;
  std::vector<const char*> names;
  for (const stretto::Collective collective : chosen_collectives()) names.push_back(name(collective));
  for (const std::string& word : words) {
    const auto place = std::find(names.begin(), names.end(), word);
    require(place != names.end(), "--collectives '{}' has no methods to measure; choose among {}.", word,
            fmt::join(names, ", "));
    list.push_back(chosen_collectives()[place - names.begin()]);
  }
  return list;
}

Arguments parse(const char* what, int argc, char** argv, bool writes) {
  Arguments arguments;
  std::vector<std::string> collectives;
  std::string most = "64M";
  const char* const file = writes ? "--write" : "--json";
  CLI::App app(what);
  app.add_option("--nproc", arguments.ranks, "Numbers of ranks, as threads of this process")->delimiter(',');
  app.add_option("--routes", arguments.routes, "shm, ucx or shm,ucx")->delimiter(',')->check(CLI::IsMember({"shm", "ucx"}));
  app.add_option("--collectives", collectives, "Only these")->delimiter(',');
  app.add_option("-e,--maxbytes", most, "Largest vector; suffix K, M or G")->capture_default_str();
  app.add_option("-f,--stepfactor", arguments.factor, "From one size to the next")->check(CLI::Range(2, 1024));
  app.add_option("--runs", arguments.runs, "With new ranks each; their medians count")->check(CLI::Range(1, 100));
  app.add_option(file, arguments.file, writes ? "The tuning file" : "File for the figures");
  if (!writes) app.add_option("--tolerance", arguments.tolerance, "How much slower than the fastest a choice may be");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    fail(stretto::ErrorCode::invalid_argument, "{}; --help lists the options.", error.what());
  }
  if (!collectives.empty()) arguments.collectives = collectives_from(collectives);
  arguments.most_bytes = bytes_from_text("-e", most);
  for (const int ranks : arguments.ranks) {
    require(ranks >= 2, "{} ranks do not communicate; give 2 or more.", ranks);
    require(arguments.most_bytes >= ranks * static_cast<std::int64_t>(sizeof(float)),
            "-e {} has no element for each of {} ranks; give at least {} bytes.", most, ranks, ranks * sizeof(float));
  }
  require(!writes || !arguments.file.empty(), "calibrate needs --write FILE: where the tuning goes.");
  if (!arguments.file.empty()) check_writable(file, arguments.file);
  return arguments;
}

std::vector<SizeTimes> measure_all(const Arguments& arguments, const std::string& route, int ranks) {
  setenv("STRETTO_TRANSPORT", route.c_str(), 1);
  std::vector<std::vector<SizeTimes>> runs(arguments.runs);
  for (std::vector<SizeTimes>& all : runs) {
    stretto::run_threads(ranks, [&](const Communicator& world) {
      for (const stretto::Collective collective : arguments.collectives) {
        const std::vector<SizeTimes> times = time_methods(world, collective, arguments.most_bytes, arguments.factor);
        if (world.rank() == 0) all.insert(all.end(), times.begin(), times.end());
      }
    });
    std::fprintf(stderr, "# %s, %d ranks: run %d of %d\n", route.c_str(), ranks, static_cast<int>(&all - runs.data()) + 1,
                 arguments.runs);
  }
  return median_of(runs);
}

// Every measurement is one equation: cost formula . (alpha, overhead, beta, gamma) = seconds, relative to the seconds.
stretto::LinkCost fitted(const std::vector<SizeTimes>& all) {
  std::vector<std::array<double, 4>> rows;
  std::vector<double> lane_gains;
  for (const SizeTimes& times : all) {
    stretto::PlanRequest request = times.request;
    for (const MethodTime& time : times.methods) {
      request.method = time.method;
      // Its formula is of wires that carry both ways at once, which memory does not.
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
  return {x[0], x[1], x[2], x[3], lane_gain};
}

double three_digits(double value) { return std::stod(fmt::format("{:.3g}", value)); }

// The methods by size with the least product of slowdowns, where every change of method counts as one of 5%: what is faster
// at one size alone is often noise.
std::vector<Method> steady_methods(const std::vector<SizeTimes>& sizes) {
  constexpr double change = 0.05;
  struct Way {  // the best one that ends with a method at a size
    double cost = 0;
    std::size_t before = 0;  // place of the method at the size before
  };
  std::vector<std::vector<Way>> ways;
  for (const SizeTimes& size : sizes) {
    std::vector<Way> here(size.methods.size());
    for (std::size_t m = 0; m < here.size(); ++m) {
      const double own = std::log(size.methods[m].seconds / size.fastest().seconds);
      here[m].cost = ways.empty() ? own : std::numeric_limits<double>::infinity();
      for (std::size_t b = 0; !ways.empty() && b < ways.back().size(); ++b) {
        const bool same = sizes[ways.size() - 1].methods[b].method == size.methods[m].method;
        const double cost = ways.back()[b].cost + own + (same ? 0 : change);
        if (cost < here[m].cost) here[m] = {cost, b};
      }
    }
    ways.push_back(std::move(here));
  }
  std::vector<Method> methods(sizes.size());
  std::size_t place = 0;
  for (std::size_t m = 0; m < ways.back().size(); ++m) {
    if (ways.back()[m].cost < ways.back()[place].cost) place = m;
  }
  for (std::size_t i = sizes.size(); i-- > 0;) {
    methods[i] = sizes[i].methods[place].method;
    place = ways[i][place].before;
  }
  return methods;
}

// Those methods as rules; a boundary lies halfway between two sizes.
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
      const auto to = static_cast<std::int64_t>(three_digits(bytes));
      text +=
          fmt::format("{}{}-{}:{}", from == 0 ? "" : ",", from, last ? "inf" : fmt::format("{}", to), to_string(methods[i]));
      from = to;
    }
  }
  return text;
}

nlohmann::ordered_json route_json(const std::string& route, int ranks, double ranks_per_core, const stretto::LinkCost& cost,
                                  const std::string& table) {
  constexpr double fastest = 1e-13;  // seconds a byte: what was too fast to be seen costs next to nothing
  return {{"route", route},
          {"ranks", ranks},
          {"ranks_per_core", three_digits(ranks_per_core)},
          {"alpha_us", three_digits(cost.alpha * 1e6)},
          {"overhead_us", three_digits(cost.overhead * 1e6)},
          {"bandwidth_gbs", three_digits(1e-9 / std::max(cost.beta, fastest))},
          {"local_gbs", three_digits(1e-9 / std::max(cost.gamma, fastest))},
          {"lane_gain", three_digits(cost.lane_gain)},
          {"table", table}};
}

}  // namespace

int calibrate(int argc, char** argv) {
  const Arguments arguments = parse("Measures this machine and writes a tuning file", argc, argv, true);
  nlohmann::ordered_json json;
  json["machine"] = processor_name();
  json["routes"] = nlohmann::json::array();
  const double cores = std::max(1U, std::thread::hardware_concurrency());
  for (const std::string& route : arguments.routes) {
    for (const int ranks : arguments.ranks) {
      const std::vector<SizeTimes> all = measure_all(arguments, route, ranks);
      json["routes"].push_back(route_json(route, ranks, ranks / cores, fitted(all), table_of(all)));
      std::fprintf(stderr, "%s\n", json["routes"].back().dump().c_str());
    }
  }
  write_file("--write", arguments.file, json.dump(1) + "\n");
  return 0;
}

int check_selection(int argc, char** argv) {
  const Arguments arguments = parse("Compares the library's choices with every fixed method", argc, argv, false);
  double worst = 1;
  nlohmann::json rows = nlohmann::json::array();
  std::printf("%-15s %5s %10s  %-28s %10s  %-28s %10s  %6s\n", "collective", "ranks", "bytes", "chosen", "us", "fastest",
              "us", "ratio");
  for (const std::string& route : arguments.routes) {
    for (const int ranks : arguments.ranks) {
      for (const SizeTimes& times : measure_all(arguments, route, ranks)) {
        const MethodTime& fastest = times.fastest();
        const double chosen = times.of(times.chosen);
        const double ratio = chosen / fastest.seconds;
        worst = std::max(worst, ratio);
        std::printf("%-15s %5d %10lld  %-28s %10.2f  %-28s %10.2f  %6.2f%s\n", name(times.collective), ranks,
                    static_cast<long long>(times.bytes), to_string(times.chosen).c_str(), chosen * 1e6,
                    to_string(fastest.method).c_str(), fastest.seconds * 1e6, ratio,
                    ratio > 1 + arguments.tolerance ? "  <" : "");
        nlohmann::json methods;
        for (const MethodTime& time : times.methods) methods[to_string(time.method)] = time.seconds * 1e6;
        rows.push_back({{"route", route},
                        {"collective", name(times.collective)},
                        {"ranks", ranks},
                        {"bytes", times.bytes},
                        {"chosen", to_string(times.chosen)},
                        {"us", methods}});
      }
    }
  }
  std::printf("The worst choice takes %.2f times as long as the fastest method.\n", worst);
  if (!arguments.file.empty()) write_file("--json", arguments.file, rows.dump(1) + "\n");
  return worst > 1 + arguments.tolerance ? 1 : 0;
}

}  // namespace perf
