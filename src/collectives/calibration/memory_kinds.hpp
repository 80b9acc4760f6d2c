#pragma once
#include <vector>

#include "collectives/calibration/method_table.hpp"

namespace stretto {

// The time of the exchange in which ranks tell each other where their buffers are: that of the smallest all_gather.
double exchange_seconds(const std::vector<CallTimes>& all);

// Takes one collective's calls in ordinary and in symmetric memory. If two methods would save less time than this
// exchange takes, both calls get one method. Symmetric calls of up to alike_up_to bytes may be missing; the ordinary ones
// then count for both.
void make_alike(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double exchange);

}  // namespace stretto
