#include "apps/train/run/served.hpp"

#include "apps/train/run/resuming.hpp"
#include "apps/train/run/training_run.hpp"
#include "stretto/models/served_training.hpp"

namespace apps {

using namespace stretto;

void train_with_servers(const Communicator& world, const CommandLine& line, StopRequest& stop, JobProgress& progress) {
  const ServedRanks ranks = split_into_servers(world, line.trainer.on(line.mesh_on(world.size())),
                                               [&](std::int64_t step) { return line.rates().at(step); });
  if (ranks.servers->is_server()) return ranks.serve();
  if (line.trainer.servers.copies > 0) choose_as_saved(line, ranks.workers);  // a job of their own
  run_training(ranks.workers, line, stop, progress, {}, ranks.servers.get());
  ranks.servers->leave();
}

}  // namespace apps
