#pragma once
#include "apps/train/options/options.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"
#include "stretto/layers/replicated_state.hpp"

namespace apps {

// Trains as the command line says, with the layout that it has. Collective. memory: of --replicate-state; null without it.
void run_training(const stretto::Communicator& ranks, const CommandLine& line, StopRequest& stop,
                  stretto::ReplicatedState* memory = nullptr);

}  // namespace apps
