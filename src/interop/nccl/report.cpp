#include "interop/nccl/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <tuple>

#include "stretto/settings.hpp"

namespace stretto::nccl_door {
namespace {

struct Counts {
  std::mutex mutex;
  std::map<std::tuple<std::string, By, std::string>, std::uint64_t> calls;  // function, by, why
};
Counts& counts() {
  static auto& all = *new Counts;
  return all;
}

const char* text_of(By by) {
  switch (by) {
    case By::stretto: return "served by Stretto";
    case By::nccl: return "handed to NCCL";
    case By::nobody: return "refused";
  }
  return "";
}

}  // namespace

bool reporting() {
  static const bool on = [] {
    if (setting("STRETTO_NCCL_REPORT") != "1") return false;
    std::atexit([] { std::fputs(report().c_str(), stderr); });
    return true;
  }();
  return on;
}

void note(const char* function, By by, std::string_view why) {
  if (!reporting()) [[likely]]
    return;
  const std::lock_guard lock(counts().mutex);
  ++counts().calls[{function, by, std::string(why)}];
}

std::string report() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::lock_guard lock(counts().mutex);
  std::string text = fmt::format("stretto-nccl: calls of process {} on {}\n", getpid(), host.data());
  for (const auto& [key, calls] : counts().calls) {
    const auto& [function, by, why] = key;
    text += fmt::format("stretto-nccl: {:>10} {:<24} {:<18} {}\n", calls, function, text_of(by), why);
  }
  return text;
}

}  // namespace stretto::nccl_door
