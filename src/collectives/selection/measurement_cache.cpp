#include "collectives/selection/measurement_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/fail.hpp"
#include "core/files/text_file.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"
#include "stretto/build.hpp"
#include "stretto/device.hpp"
#include "stretto/planning/tuning.hpp"

namespace stretto {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

// The network interfaces and their speeds in Mb/s, and the settings that say which of them are used and how fast they are.
std::string networks() {
  std::vector<std::string> all;
  std::error_code ignored;
  for (const fs::directory_entry& each : fs::directory_iterator("/sys/class/net", ignored)) {
    if (each.path().filename() != "lo") all.push_back(first_line(each.path() / "speed"));
  }
  std::sort(all.begin(), all.end());
  for (const char* name : {"UCX_NET_DEVICES", "UCX_TLS"}) {
    const char* const value = std::getenv(name);
    all.emplace_back(value == nullptr ? "" : value);
  }
  all.push_back(setting("STRETTO_NETWORK"));
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string machine(bool several_hosts) {
  const long pages = sysconf(_SC_PHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024);  // MiB
  std::string text = fmt::format("{}, {} cores, {} GiB, Stretto {}", processor_name(), sysconf(_SC_NPROCESSORS_ONLN),
                                 (pages + 512) / 1024, build_version());
  for (const char* name : {"STRETTO_WAIT", "STRETTO_CPU_LEVEL", "STRETTO_RING_BYTES"}) {
    text += fmt::format(", {}={}", name, setting(name));
  }
  return several_hosts ? text + ", networks " + networks() : text;
}

fs::path directory() {
  if (const std::string directory = setting("STRETTO_CACHE_DIR"); !directory.empty()) return directory;
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "stretto";
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache/stretto";
  return {};
}

// A route's key in the file: a new route replaces an older one with the same key.
std::string place_of(const Json& route) {
  return route.at("route").dump() + route.at("ranks").dump() + route.value("ranks_per_node", Json(0)).dump() +
         route.at("ranks_per_core").dump();
}

}  // namespace

MeasurementCache::MeasurementCache(bool several_hosts) : machine_(machine(several_hosts)) {
  const fs::path in = directory();
  if (!in.empty()) path_ = in / fmt::format("tuning-{:016x}.json", XXH64(machine_.data(), machine_.size(), 0));
}

std::string MeasurementCache::read(bool reports) const {
  if (path_.empty() || access(path_.c_str(), F_OK) != 0) return "";
  try {
    std::string text = text_of_file(path_, path_);
    Tuning::from_json(text, path_);
    return text;
  } catch (const Error& error) {
    if (reports) log().warn("{} This machine is measured again.", error.what());
    return "";
  }
}

bool MeasurementCache::add(const std::vector<std::string>& routes) const {
  Json file{{"machine", machine_}, {"routes", Json::array()}};
  if (const std::string known = read(false); !known.empty()) file["routes"] = Json::parse(known).at("routes");
  for (const std::string& text : routes) {
    const Json route = Json::parse(text);
    std::erase_if(file["routes"].get_ref<Json::array_t&>(),
                  [&](const Json& old) { return place_of(old) == place_of(route); });
    file["routes"].push_back(route);
  }
  return write_text_file(path_, file.dump(1) + '\n');
}

MeasurementCache::~MeasurementCache() {
  if (lock_ >= 0) close(lock_);
}

MeasurementCache::Turn MeasurementCache::take_turn() {
  if (path_.empty()) return Turn::nowhere;
  const fs::path in = fs::path(path_).parent_path();
  std::error_code ignored;
  fs::create_directories(in, ignored);
  if (access(in.c_str(), W_OK | X_OK) != 0) return Turn::nowhere;
  if (lock_ < 0) lock_ = open(in.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0) return Turn::nowhere;
  const bool is_taken = flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return is_taken ? Turn::another_job : Turn::mine;  // also where the file system has no locks
}

std::string Tuning::measurements_path(bool several_hosts) { return MeasurementCache(several_hosts).path(); }

}  // namespace stretto
