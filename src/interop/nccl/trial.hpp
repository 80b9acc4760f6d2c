#pragma once
#include <vector>

#include "stretto/stretto.h"

namespace stretto::nccl_door {

// Ranks of this process, and the GPU that each uses.
struct RankOnGpu {
  strettoComm_t ranks;
  int device;
};

// Collective: whether Stretto reaches all these GPUs is found out where communicators are made, for there a program expects
// that it may fail. Throws Refusal.
void try_gpus(const std::vector<RankOnGpu>& ranks);

}  // namespace stretto::nccl_door
