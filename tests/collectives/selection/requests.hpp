#pragma once
#include "stretto/planning/tuning.hpp"

// The requests and tunings that tests of choices share.
namespace stretto {

inline constexpr const char* two_routes = R"({"routes": [
 {"route": "shm", "ranks": 4, "ranks_per_core": 1, "alpha_us": 1, "overhead_us": 0, "bandwidth_gbs": 10, "local_gbs": 10,
  "lane_gain": 0, "table": "broadcast:0-1k:direct,1k-inf:chain/16"},
 {"route": "ucx", "ranks": 2, "ranks_per_core": 1, "alpha_us": 20, "overhead_us": 1, "bandwidth_gbs": 1, "local_gbs": 10,
  "lane_gain": 0.5}]})";

inline PlanRequest request(Collective collective, std::int64_t count, int size = 4) {
  return {collective, Algorithm::automatic, 0, size, count};
}

// The choice for sums in f32.
inline Choice choice_of(const PlanRequest& what, const Tuning& tuning, const Circumstances& where = {},
                        bool may_be_plain = false) {
  return choose(what, DType::f32, ReduceOp::sum, tuning, where, may_be_plain);
}

inline const Circumstances on_nodes{.several_nodes = true};

inline Method chosen(const PlanRequest& what, const Tuning& tuning, DType dtype = DType::f32,
                     const Circumstances& where = {}) {
  return choose(what, dtype, ReduceOp::sum, tuning, where).method;
}

}  // namespace stretto
