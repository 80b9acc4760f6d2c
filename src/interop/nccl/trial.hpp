#pragma once
#include <vector>

#include "stretto/stretto.h"

namespace stretto::nccl_door {

// A rank of this process and the GPU that it uses.
struct RankOnGpu {
  strettoComm_t ranks;
  int device;
};

// Collective. Tests whether Stretto reaches all these GPUs, when a communicator is made: that is where a program expects an
// error. Throws Refusal.
void try_gpus(const std::vector<RankOnGpu>& ranks);

}  // namespace stretto::nccl_door
