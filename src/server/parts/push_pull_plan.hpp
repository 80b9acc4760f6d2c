#pragma once
#include <cstdint>
#include <vector>

#include "stretto/plan.hpp"

namespace stretto {

// What a push_pull() is between `workers` workers, ranks from 0 on, and a server, the rank behind them, as an all-reduce of
// the server's parts, one behind the other: the server contributes its values. parts: elements of each, in the order in
// which workers send them. The plan of `rank`.
Plan push_pull_plan(int rank, int workers, const std::vector<std::int64_t>& parts);

}  // namespace stretto
