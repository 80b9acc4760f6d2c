#pragma once
#include <functional>

#include "options.hpp"
#include "stop_request.hpp"
#include "stretto/communicator.hpp"

namespace gpt {

// A wrong input is wrong for every rank: rank 0 looks first, so that the error is printed once.
void rank0_first(const stretto::Communicator& world, const std::function<void()>& look);

// Trains as the command line says, with the layout that it has. Collective.
void run_training(const stretto::Communicator& ranks, const CommandLine& line, StopRequest& stop);

}  // namespace gpt
