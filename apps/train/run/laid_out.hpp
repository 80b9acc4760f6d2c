#pragma once
#include <memory>

#include "apps/train/options/command_line.hpp"
#include "apps/train/report/training_plan.hpp"
#include "apps/train/run/stragglers.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "stretto/layers/replicas.hpp"
#include "stretto/models/trainer.hpp"

namespace apps {

// The parts of a run that depend on the layout of the ranks.
struct LaidOut {
  stretto::Mesh mesh;
  stretto::Trainer trainer;
  TrainingPlan plan;  // on rank 0; without stages if servers hold a part of what it would count
  Stragglers stragglers;
  std::unique_ptr<stretto::CheckpointSaver> saver;  // with --save

  LaidOut(const CommandLine& line, const stretto::Communicator& world, const stretto::ReplicaGroups& replicas,
          stretto::ServerSet* servers)
      : mesh(replicas.replica, line.mesh_on(world.size() + line.trainer.servers.count)),
        trainer(mesh, line.trainer, replicas.peers, servers),
        plan(world.rank() == 0 && servers == nullptr ? plan_training(trainer.options(), trainer.pipeline().schedule())
                                                     : TrainingPlan()),
        stragglers(mesh, line.straggler_threshold.value_or(Stragglers::usual_threshold)) {
    if (line.save.empty()) return;
    saver = std::make_unique<stretto::CheckpointSaver>(
        trainer.sharded(), trainer.optimizer(), line.save,
        stretto::CheckpointSaver::Options{.in_background = line.trainer.saves_in_background,
                                          .keep = line.keep,
                                          .trained_only = line.saves_adapters_only,
                                          .ranks = world});
  }
};

}  // namespace apps
