#pragma once
#include <vector>

#include "collectives/calibration/method_table.hpp"

namespace stretto {

// The time in which ranks tell each other where their buffers lie: that of the smallest all_gather.
double telling_seconds(const std::vector<CallTimes>& all);

// Takes one collective's calls in ordinary and in symmetric memory. Where two methods would save less time than telling
// costs, both calls get one method. Symmetric calls of up to alike_up_to bytes may be missing; the ordinary ones then count
// for both.
void make_alike(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double telling);

}  // namespace stretto
