// stretto-info: what this build and this machine have, and every setting with its meaning, default and value.
#include <fmt/format.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>

#include "stretto/build.hpp"
#include "stretto/plan.hpp"
#include "stretto/settings.hpp"

int main() {
  using namespace stretto;
  fmt::print("Stretto {}\n", build_version());
  for (const auto& [part, present] : build_parts()) fmt::print("  with {:<12}{}\n", part, present);
  cpu_set_t allowed;
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
  fmt::print("\nThis machine\n  cores           {}\n  vector target   {}\n", cores, vector_target());

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
    // A secret is not for screens.
    const bool secret = std::string(each.name).find("SECRET") != std::string::npos;
    const std::string value = secret && is_set ? "(set)" : setting(each.name);
    fmt::print("  {} = '{}'{}\n      {}; default '{}'\n", each.name, value, is_set ? " (from the environment)" : "",
               each.meaning, each.default_value);
  }
  try {
    check_settings();
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
