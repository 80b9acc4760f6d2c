#pragma once
#include <cstdint>
#include <vector>

#include "stretto/plan.hpp"

namespace stretto {

// The plan by which `rank` takes part in a push_pull(): an all-reduce of a server's parts, one behind the other, among the
// workers, ranks from 0 on, and the server, the rank behind them, which contributes its values. parts: elements of each, in
// the order in which workers send them.
Plan push_pull_plan(int rank, int workers, const std::vector<std::int64_t>& parts);

}  // namespace stretto
