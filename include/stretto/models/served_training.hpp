#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "stretto/communicator.hpp"
#include "stretto/models/training_options.hpp"
#include "stretto/server.hpp"

// Data-parallel training through parameter servers (Li et al. 2014): servers hold the trained values and the optimizer's
// state, sum what workers push, and update. Workers save and load checkpoints like any job (checkpoint.hpp): each server
// writes a shard with what it has, and reads what it needs of any job's shards. They must meet first, as behind
// Trainer::run(), and load before the first step.
//
//   const ServedRanks ranks = split_into_servers(world, options, lr_of);
//   if (ranks.servers->is_server()) return ranks.serve();
//   Trainer trainer(Mesh(ranks.workers, options.mesh), options, {}, ranks.servers.get());
//   trainer.run({.count = steps, .fill_of = fill_of, .done = report});
//   ranks.servers->leave();
namespace stretto {

struct STRETTO_API ServedRanks {
  std::unique_ptr<ServerSet> servers;
  Communicator workers;      // empty on servers
  ServerSet::Answer answer;  // of servers to workers that save or load a checkpoint

  void serve() const;  // servers->serve(answer)
};

// With options.servers.copies the workers are a job of their own (launch.hpp: connect()), beside that of `world`: training
// goes on when a server is lost, with the same bits under Consistency::sequential(), and ends when a worker is. Workers
// attend (ServerSet::attend()): they may compute, validate, save and wait for one another meanwhile, and must not use
// `world` any more. Processes need LaunchOptions::survivors_go_on, and `world` must have all ranks of its job. A server that
// reads or writes its shard for longer than STRETTO_TIMEOUT after the loss of another one is left behind.
//
// Collective over world, whose last options.servers.count ranks become servers and the others the ranks of options.mesh. The
// learning rate of step i, counted from 0, is lr_of(i); with Consistency::eventual, of so many updates by each worker.
// Throws like TrainingOptions::check().
STRETTO_API ServedRanks split_into_servers(const Communicator& world, const TrainingOptions& options,
                                           const std::function<double(std::int64_t step)>& lr_of);

}  // namespace stretto
