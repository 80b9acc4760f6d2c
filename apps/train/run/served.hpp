#pragma once
#include "apps/train/options/command_line.hpp"
#include "apps/train/run/job_progress.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"

namespace apps {

// Trains with --servers: the last ranks of `world` serve, and the others train.
void train_with_servers(const stretto::Communicator& world, const CommandLine& line, StopRequest& stop,
                        JobProgress& progress);

}  // namespace apps
