#pragma once
#include <functional>
#include <vector>

#include "apps/train/options/command_line.hpp"
#include "apps/train/run/job_progress.hpp"
#include "apps/train/run/rejoin.hpp"
#include "apps/train/run/stop_request.hpp"
#include "stretto/communicator.hpp"

namespace apps {

// Trains. With --elastic, when ranks are lost, those that are left go on from the job's newest checkpoint, with as many
// whole replicas as they make up and can train by the other flags. A rank that is left over returns. With --rejoin, they
// take in the processes that come for the lost ranks, between two steps. Collective.
void train_and_go_on(const stretto::Communicator& world, const CommandLine& line, StopRequest& stop, Rejoin& rejoin,
                     JobProgress& progress);

// Chooses the survivors of a mesh that go on. These are the replicas that lost no rank. If rank 0's replica has lost one,
// they are the first survivors instead, which close up, because a job cannot leave its rank 0. As many replicas go on as
// trains_on() accepts, or one. Ranks are in ascending order. Throws Error(unavailable) if they are too few for one replica.
std::vector<int> ranks_to_go_on(const std::vector<int>& left, const stretto::MeshShape& mesh,
                                const std::function<bool(int ranks)>& trains_on);

}  // namespace apps
