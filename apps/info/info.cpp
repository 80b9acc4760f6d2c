// stretto-info: prints the parts of this build, the machine, and every setting with its meaning, default and value.
// stretto-info flight DIRECTORY: compares the last operations of all ranks of a job.
// stretto-info servers HOST:PORT...: what parameter servers hold, and how far they are.
// stretto-info programs HOST:PORT...: what programs of one controller run, and for whom executors are busy.
#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "apps/common/exit_status.hpp"
#include "apps/info/flight/report.hpp"
#include "stretto/build.hpp"
#include "stretto/device.hpp"
#include "stretto/error.hpp"
#include "stretto/plan.hpp"
#include "stretto/planning/tuning.hpp"
#include "stretto/program.hpp"
#include "stretto/server.hpp"
#include "stretto/settings.hpp"

namespace {

using namespace stretto;

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

void print_caches(hwloc_topology_t topology) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L1CACHE, HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE}) {
    const int count = hwloc_get_nbobjs_by_type(topology, type);
    if (count <= 0) continue;
    const hwloc_obj_t first = hwloc_get_obj_by_type(topology, type, 0);
    fmt::print("  {:<16}{} of {} KiB\n", hwloc_obj_type_string(type), count, first->attr->cache.size >> 10);
  }
}

void print_machine() {
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  fmt::print("\nThis machine\n  processor       {}\n", processor());
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) == 0) {
    if (hwloc_topology_load(topology) == 0) {
      fmt::print("  topology        {} package(s), {} NUMA node(s), {} core(s), {} hardware thread(s), {} of them usable\n",
                 hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE),
                 hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE), hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE),
                 hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), cores);
      print_caches(topology);
    }
    hwloc_topology_destroy(topology);
  }
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
  fmt::print("  memory          {:.1f} GiB\n", pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 30));
  struct statvfs shm {};
  const std::string directory = setting("STRETTO_SHM_DIR");
  if (directory.empty()) {
    fmt::print("  shared memory   anonymous files (memfd)\n");
  } else if (statvfs(directory.c_str(), &shm) == 0) {
    fmt::print("  shared memory   {}, {:.1f} GiB free\n", directory,
               static_cast<double>(shm.f_bavail) * static_cast<double>(shm.f_frsize) / (1 << 30));
  } else {
    fmt::print("  shared memory   {}, which cannot be used\n", directory);
  }
}

void print_gpu() {
  fmt::print("\nGPU\n");
  const std::optional<GpuInfo> gpu = gpu_info();
  if (!gpu) {
    fmt::print("  none: {}\n", cuda_obstacle());
    return;
  }
  fmt::print("  {}, compute capability {}.{}, {:.1f} GiB, {} multiprocessors\n  number {} of the {} here, {}\n", gpu->name,
             gpu->major, gpu->minor, static_cast<double>(gpu->memory_bytes) / (1 << 30), gpu->multiprocessors, gpu->index,
             gpu->count, gpu->uuid);
}

void print_instructions() {
  fmt::print("\nInstructions in use (STRETTO_CPU_LEVEL={})\n", setting("STRETTO_CPU_LEVEL"));
  for (const auto& [library, instructions] : instruction_sets()) fmt::print("  {:<16}{}\n", library, instructions);
}

void print_tuning() {
  fmt::print("\nMeasured costs in force\n");
  const Tuning tuning = Tuning::from_environment();
  if (setting("STRETTO_CALIBRATE") == "auto" && setting("STRETTO_TUNING").empty() &&
      setting("STRETTO_DETERMINISTIC") == "0") {
    for (const bool several_hosts : {false, true}) {
      const std::string path = Tuning::measurements_path(several_hosts);
      std::error_code ignored;
      const char* const note = path.empty()                             ? "no place; set HOME or STRETTO_CACHE_DIR"
                               : std::filesystem::exists(path, ignored) ? ""
                                                                        : " (nothing yet)";
      fmt::print("  before those below, what jobs on {} have measured here: {}{}\n",
                 several_hosts ? "several hosts" : "one host", path, note);
    }
  }
  for (const RouteCost& known : tuning.routes) {
    fmt::print(
        "  {:<5}{} ranks, {:.3g} a core: alpha {:.3g} us, overhead {:.3g} us, {:.3g} GB/s, local work {:.3g} GB/s, {} "
        "rules\n",
        known.route, known.ranks, known.ranks_per_core, known.cost.alpha * 1e6, known.cost.overhead * 1e6,
        1e-9 / known.cost.beta, 1e-9 / known.cost.gamma, known.rules.size());
  }
}

}  // namespace

int print_everything() {
  fmt::print("Stretto {}\n", build_version());
  for (const auto& [part, present] : build_parts()) fmt::print("  with {:<12}{}\n", part, present);
  print_machine();
  print_gpu();

  fmt::print("\nAlgorithms\n");
  for (int i = 0; i <= static_cast<int>(Collective::recv); ++i) {
    const auto collective = static_cast<Collective>(i);
    std::string names;
    for (const Algorithm algorithm : algorithms_for(collective))
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name(algorithm));
    fmt::print("  {:<16}{}\n", name(collective), names);
  }

  fmt::print("\nSettings (environment)\n");
  for (const Setting& each : settings()) {
    const bool is_set = std::getenv(each.name) != nullptr;
    // A secret is not printed.
    const bool secret = std::string(each.name).find("SECRET") != std::string::npos;
    const std::string value = secret && is_set ? "(set)" : setting(each.name);
    fmt::print("  {} = '{}'{}\n      {}; default '{}'\n", each.name, value, is_set ? " (from the environment)" : "",
               each.meaning, each.default_value);
  }
  return apps::exit_status([] {
    check_settings();
    print_instructions();
    print_tuning();
    return 0;
  });
}

// Prints state_at(host, port) of each address, and at the end names those that do not answer.
template <class StateAt>
int print_states(int count, char** addresses, const char* setting, StateAt state_at) {
  int status = 0;
  for (int i = 0; i < count; ++i) {
    const int answered = apps::exit_status([&] {
      const std::string address = addresses[i];
      const std::size_t colon = address.rfind(':');
      const char* const first = address.data() + (colon == std::string::npos ? address.size() : colon + 1);
      const char* const end = address.data() + address.size();
      int port = 0;
      const auto [behind, error] = std::from_chars(first, end, port);
      if (error != std::errc() || behind != end || port < 1 || port > 65535) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("'{}' names no port; give HOST:PORT, with the PORT of {}.", address, setting));
      }
      std::fputs(state_at(address.substr(0, colon), port).c_str(), stdout);
      return 0;
    });
    status = std::max(status, answered);
  }
  return status;
}

int main(int argc, char** argv) {
  if (argc == 1) return print_everything();
  const std::string verb = argv[1];
  if (verb == "servers" && argc > 2) {
    return print_states(argc - 2, argv + 2, "STRETTO_SERVERS_PORT",
                        [](const std::string& host, int port) { return server_state(host, port); });
  }
  if (verb == "programs" && argc > 2) {
    return print_states(argc - 2, argv + 2, "STRETTO_PROGRAMS_PORT",
                        [](const std::string& host, int port) { return programs_state(host, port); });
  }
  if (argc != 3 || verb != "flight") {
    const bool help = verb == "--help" || verb == "-h";
    std::fputs(
        "stretto-info                    the build, the machine and all settings\n"
        "stretto-info flight DIRECTORY   what the ranks' last operations, written to DIRECTORY, say about a hang\n"
        "stretto-info servers HOST:PORT...\n"
        "                                what parameter servers hold, and how far they are (STRETTO_SERVERS_PORT)\n"
        "stretto-info programs HOST:PORT...\n"
        "                                what programs of one controller run, and for whom executors are busy\n"
        "                                (STRETTO_PROGRAMS_PORT)\n",
        help ? stdout : stderr);
    return help ? 0 : 1;
  }
  return apps::exit_status([&] {
    std::vector<std::string> damaged;
    std::fputs(apps::flight::report_of(argv[2], damaged).c_str(), stdout);
    std::fflush(stdout);
    for (const std::string& sentence : damaged) std::fprintf(stderr, "error: %s\n", sentence.c_str());
    return damaged.empty() ? 0 : 1;
  });
}
