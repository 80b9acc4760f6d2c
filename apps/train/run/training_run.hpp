#pragma once
#include <memory>

#include "apps/train/options/command_line.hpp"
#include "apps/train/run/carried_training.hpp"
#include "apps/train/run/job_progress.hpp"
#include "apps/train/run/rejoin.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"
#include "stretto/layers/replicated_state.hpp"
#include "stretto/server.hpp"

namespace apps {

// The parts of --elastic that outlive a job.
struct ElasticParts {
  stretto::ReplicatedState* memory = nullptr;  // of --replicate-state
  Rejoin* rejoin = nullptr;                    // of --rejoin
  std::unique_ptr<CarriedTraining> carried = {};
};

// Trains as the command line says, with the layout that it has, or goes on with what is carried. Collective. Returns the
// training on its way if ranks are there to join, else null. servers: of --servers, whose workers are `ranks`; null without
// them.
std::unique_ptr<CarriedTraining> run_training(const stretto::Communicator& ranks, const CommandLine& line, StopRequest& stop,
                                              JobProgress& progress, ElasticParts elastic = {},
                                              stretto::ServerSet* servers = nullptr);

}  // namespace apps
