#pragma once
#include <vector>

#include "collectives/calibration/method_table.hpp"

namespace stretto {

// The seconds in which ranks tell each other where their buffers lie: those of a small all_gather.
double telling_seconds(const std::vector<CallTimes>& all);

// One collective's calls with buffers in ordinary and in symmetric memory. Both tables get one method where two would not be
// worth the telling. Calls of up to alike_up_to bytes may be absent from the symmetric ones; those in ordinary memory then
// stand for both.
void make_alike(std::vector<TableCall>& ordinary, std::vector<TableCall>& symmetric, double telling);

}  // namespace stretto
