#pragma once
#include <fmt/format.h>

#include <string>

namespace stretto {

// A tuning file by which calls use one table with ordinary memory, and pull or push without, on any machine.
inline std::string tuning_by_memory(const std::string& table, int ranks) {
  std::string routes;
  for (int cores = 1; cores <= 512; ++cores) {
    routes += fmt::format(
        R"({}{{"route": "shm", "ranks": {}, "ranks_per_core": {:.6f}, "alpha_us": 1, "overhead_us": 1, "bandwidth_gbs": 1,
 "local_gbs": 1, "lane_gain": 0, "table": "{}", "symmetric_table":
 "all_reduce:push;all_to_all:pull;reduce_scatter:pull;all_gather:pull;reduce:push;broadcast:push;scatter:pull;gather:pull"}})",
        routes.empty() ? "" : ", ", ranks, static_cast<double>(ranks) / cores, table);
  }
  return fmt::format(R"({{"routes": [{}]}})", routes);
}

}  // namespace stretto
