#pragma once
#include <functional>

#include "apps/train/options/options.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"
#include "stretto/layers/replicated_state.hpp"

namespace apps {

// A wrong input is wrong for every rank: rank 0 looks first, so that the error is printed once.
void rank0_first(const stretto::Communicator& world, const std::function<void()>& look);

// Trains as the command line says, with the layout that it has. Collective. memory: of --replicate-state; null without it.
void run_training(const stretto::Communicator& ranks, const CommandLine& line, StopRequest& stop,
                  stretto::ReplicatedState* memory = nullptr);

}  // namespace apps
