#include "perf/sweep.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "apps/common/parse_flags.hpp"
#include "common/fail.hpp"
#include "common/output_file.hpp"
#include "common/size_text.hpp"
#include "perf/from_ranks.hpp"
#include "perf/options.hpp"

namespace perf {

using stretto::Communicator;

namespace {

std::vector<stretto::Collective> collectives_from(const std::vector<std::string>& words) {
  std::vector<stretto::Collective> list;
  std::vector<const char*> names;
  for (const stretto::Collective collective : stretto::timed_collectives()) names.push_back(name(collective));
  for (const std::string& word : words) {
    const auto place = std::find(names.begin(), names.end(), word);
    require(place != names.end(), "--collectives '{}' has no methods to measure; choose among {}.", word,
            fmt::join(names, ", "));
    list.push_back(stretto::timed_collectives()[place - names.begin()]);
  }
  return list;
}

SizeTimes from_json(const nlohmann::ordered_json& json) {
  SizeTimes times;
  times.request = {stretto::collective_from_name(json.at("collective")), stretto::Algorithm::automatic, 0, json.at("ranks"),
                   json.at("count")};
  times.bytes = json.at("bytes");
  times.symmetric = json.at("symmetric");
  times.chosen = stretto::method_from_text(json.at("chosen"));
  for (const auto& [method, us] : json.at("us").items()) {
    times.methods.push_back({stretto::method_from_text(method), us.get<double>() * 1e-6});
  }
  return times;
}

std::vector<SizeTimes> one_run(const SweepOptions& options, int ranks, Memory memory, const std::string& label) {
  const auto figures = from_ranks(ranks, [&](const Communicator& world) {
    nlohmann::ordered_json all = nlohmann::json::array();
    for (const stretto::Collective collective : options.collectives) {
      const double begin = stretto::now_seconds();
      for (const SizeTimes& times : time_methods(world, collective, memory, options.most_bytes, options.factor)) {
        all.push_back(json_of(times));
      }
      if (world.rank() != 0) continue;
      std::fprintf(stderr, "# %s, %s: %.1f s\n", label.c_str(), name(collective), stretto::now_seconds() - begin);
    }
    return all;
  });
  if (!figures) fail(stretto::ErrorCode::internal, "{} could not be measured; the sentences above say why.", label);
  std::vector<SizeTimes> result;
  for (const auto& times : *figures) result.push_back(from_json(times));
  return result;
}

}  // namespace

std::vector<Memory> SweepOptions::memories_of(const std::string& route) const {
  return route == "shm" ? memories : std::vector{Memory::ordinary};
}

SweepOptions parse_sweep(const char* description, int argc, char** argv, bool writes) {
  SweepOptions options;
  std::vector<std::string> collectives;
  std::vector<std::string> memories = {"malloc", "symmetric"};
  std::string most = "64M";
  const char* const file = writes ? "--write" : "--json";
  CLI::App app(description, writes ? "stretto-perf calibrate" : "stretto-perf selection");
  app.add_option("--nproc", options.ranks, "Numbers of ranks; ranks are processes")->delimiter(',');
  std::vector<CLI::Option*> of_sweeps{
      app.add_option("--routes", options.routes, "shm, ucx or shm,ucx")
          ->delimiter(',')
          ->check(CLI::IsMember({"shm", "ucx"})),
      app.add_option("--collectives", collectives, "Only these")->delimiter(','),
      app.add_option("-e,--maxbytes", most, "Largest vector; suffix K, M or G")->capture_default_str(),
      app.add_option("-f,--stepfactor", options.factor, "Factor from one size to the next")->check(CLI::Range(2, 1024)),
      app.add_option("--runs", options.runs, "Runs, each with new ranks; figures are medians")->check(CLI::Range(1, 100)),
      app.add_option(file, options.file, writes ? "The tuning file" : "File for the figures")};
  if (writes) {
    of_sweeps.push_back(
        app.add_flag("--keep", options.keep, "Keep the file's entries for other routes and numbers of ranks"));
    CLI::Option* const this_machine =
        app.add_flag("--this-machine", options.this_machine,
                     "Instead: measure as a first job does at its start, two seconds for each number of ranks, and keep "
                     "that for all later jobs");
    for (CLI::Option* const each : of_sweeps) this_machine->excludes(each);
  } else {
    app.add_option("--tolerance", options.tolerance, "How much slower than the fastest method a choice may be");
    app.add_option("--memory", memories, "Memory of the buffers on the route shm: symmetric, malloc or malloc,symmetric")
        ->delimiter(',')
        ->check(CLI::IsMember({"symmetric", "malloc"}));
  }
  if (!apps::parse_flags(app, argc, argv)) std::exit(0);
  if (!collectives.empty()) options.collectives = collectives_from(collectives);
  options.memories.clear();
  for (const std::string& memory : memories) {
    options.memories.push_back(memory == "malloc" ? Memory::ordinary : Memory::symmetric);
  }
  options.most_bytes = bytes_from_text("-e", most);
  for (const int ranks : options.ranks) {
    require(ranks >= 2, "{} ranks do not communicate; give 2 or more.", ranks);
    require(options.most_bytes >= ranks * static_cast<std::int64_t>(sizeof(float)),
            "-e {} has no element for each of {} ranks; give at least {} bytes.", most, ranks, ranks * sizeof(float));
  }
  require(!writes || options.this_machine || !options.file.empty(),
          "calibrate needs --write FILE, the tuning file to write, or --this-machine.");
  if (!options.file.empty()) check_writable(file, options.file);
  return options;
}

std::vector<SizeTimes> sweep(const SweepOptions& options, const std::string& route, int ranks, Memory memory) {
  setenv("STRETTO_TRANSPORT", route.c_str(), 1);
  std::vector<std::vector<SizeTimes>> runs;
  for (int run = 1; run <= options.runs; ++run) {
    const std::string label =
        fmt::format("{}, {} ranks, {}, run {} of {}", route, ranks, name_of(memory), run, options.runs);
    runs.push_back(one_run(options, ranks, memory, label));
  }
  return median_of(runs);
}

nlohmann::ordered_json json_of(const SizeTimes& times) {
  nlohmann::ordered_json methods;
  for (const stretto::MethodTime& time : times.methods) methods[to_string(time.method)] = time.seconds * 1e6;
  return {{"collective", name(times.request.collective)},
          {"ranks", times.request.size},
          {"bytes", times.bytes},
          {"count", times.request.count},
          {"symmetric", times.symmetric},
          {"chosen", to_string(times.chosen)},
          {"us", methods}};
}

}  // namespace perf
