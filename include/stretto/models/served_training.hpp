#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stretto/communicator.hpp"
#include "stretto/models/training_options.hpp"
#include "stretto/server.hpp"

// Data-parallel training through parameter servers (Li et al. 2014): servers hold the trained values and the optimizer's
// state, sum what workers push, and update.
//
//   const ServedRanks ranks = split_into_servers(world, options, lr_of);
//   if (ranks.servers->is_server()) return ranks.servers->serve();
//   Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
//   trainer.run({.count = steps, .fill_of = fill_of, .done = report});
//   ranks.servers->leave();
namespace stretto {

struct ServedRanks {
  std::unique_ptr<ServerSet> servers;
  Communicator workers;  // empty on servers
};

// Collective over world, whose last options.servers.count ranks become servers and the others the ranks of options.mesh. The
// learning rate of step i, counted from 0, is lr_of(i); with Consistency::eventual, of so many updates by each worker.
// Throws like TrainingOptions::check().
STRETTO_API ServedRanks split_into_servers(const Communicator& world, const TrainingOptions& options,
                                           const std::function<double(std::int64_t step)>& lr_of);

// The tables: one for each unit of trained parameters, in the units' order, with the model's initial values.
STRETTO_API std::vector<ServedTable> served_tables(const TrainingOptions& options,
                                                   const std::function<double(std::int64_t step)>& lr_of);

}  // namespace stretto
