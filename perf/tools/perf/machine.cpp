#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>

#include "common/fail.hpp"
#include "perf/result.hpp"
#include "stretto/build.hpp"
#include "stretto/device.hpp"
#include "stretto/settings.hpp"

namespace perf {

namespace {

std::string now() {
  const std::time_t time = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string host_name() {
  std::array<char, 256> text{};
  gethostname(text.data(), text.size() - 1);
  return text.data();
}

}  // namespace

// Counted before the ranks start and get cores of their own; they inherit the number.
const int cores_at_start = [] {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}();

Machine this_machine(const stretto::Communicator& world) {
  Machine machine;
  machine.cpu = stretto::processor_name();
  if (stretto::current_device() == stretto::Device::cuda) machine.gpu = stretto::gpu_info().value().name;
  machine.date = now();
  machine.version = stretto::build_version();
  machine.transport = stretto::setting("STRETTO_TRANSPORT");
  machine.ranks = world.size();
  machine.cores = cores_at_start;
  machine.hosts = to_rank0(world, host_name());
  std::sort(machine.hosts.begin(), machine.hosts.end());
  machine.hosts.erase(std::unique(machine.hosts.begin(), machine.hosts.end()), machine.hosts.end());
  for (const stretto::Setting& each : stretto::settings()) {
    const std::string value = stretto::setting(each.name);
    const bool secret = std::string(each.name).find("SECRET") != std::string::npos;
    if (value != each.default_value && !secret) machine.settings.push_back(fmt::format("{}={}", each.name, value));
  }
  return machine;
}

}  // namespace perf
