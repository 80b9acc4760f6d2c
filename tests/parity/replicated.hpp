// Replicas that agree every H steps (DiLoCo): how tests train them, and what they compare.
#pragma once
#include "parity.hpp"
#include "stretto/layers/diloco.hpp"

namespace parity {

struct Replicated {
  DiLoCoOptions diloco;
  Layout layout;  // of a replica
  ZeroStage zero = ZeroStage::none;
  DType dtype = DType::f32;
  bool measures = false;  // ZeRO 0: whether times choose units that are updated by share, whose state elsewhere is stale

  int ranks() const { return diloco.replicas * layout.ranks(); }
  std::string text() const {
    return fmt::format("{} replicas of dp {} tp {} pp {}, zero {}, {}, H {} in {}, delay {}, alpha {}", diloco.replicas,
                       layout.data, layout.tensor, layout.pipeline, static_cast<int>(zero), name(dtype), diloco.sync_every,
                       diloco.fragments, diloco.fragment_sync_delay, diloco.fragment_update_alpha);
  }
  TrainingOptions options() const {
    TrainingOptions options = tiny(layout, dtype);
    options.sharding.zero = zero;
    options.sharding.measured_steps = measures ? 1 : 0;
    options.global_batch = 4L * diloco.replicas;
    options.loss_scale.initial = 1024;  // which no step overflows
    options.diloco = diloco;
    return options;
  }
};

using Numbers = std::vector<double>;

inline void append(Numbers& numbers, const Tensor& tensor) {
  for (std::int64_t i = 0; tensor && i < tensor.size(); ++i) numbers.push_back(tensor.at(i));
}

// What the inner training has made: the values that the rank computes with, those of all owners, and the state of the
// elements that the rank updates, or of its share of them.
inline Numbers state_of(Trainer& trainer, std::size_t inner_slots, bool of_share) {
  Numbers numbers;
  trainer.sharded().wait_for_values();
  for (const auto& parameter : trainer.parameters().all()) append(numbers, parameter->value);
  for (const Tensor& value : trainer.sharded().whole_values()) append(numbers, value);
  for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
    const Optimizer::State& state = trainer.optimizer().states()[i];
    if (of_share && !trainer.sharded().ranges()[i].in_share) continue;
    append(numbers, state.master);
    for (std::size_t slot = 0; slot < inner_slots; ++slot) append(numbers, state.slots[slot]);
  }
  return numbers;
}

using States = std::vector<Numbers>;  // by rank of the job
inline constexpr double inner_rate = 3e-3;

struct Trained {
  States states;
  std::vector<double> losses;
};

using Prepare = std::function<void(Trainer& trainer, std::int64_t step)>;

inline Trained train_replicas(const Replicated& how, std::int64_t steps, const Prepare& before_step = {}) {
  Trained trained;
  trained.states.resize(static_cast<std::size_t>(how.ranks()));
  run_threads(how.ranks(), [&](const Communicator& world) {
    const ReplicaGroups groups = split_into_replicas(world, how.diloco.replicas);
    Trainer trainer(Mesh(groups.replica, how.layout.mesh()), how.options(), groups.peers);
    const std::size_t inner = kind_of(how.options().optimizer).slots.size();
    for (std::int64_t step = 0; step < steps; ++step) {
      if (before_step) before_step(trainer, step);
      const double loss = trainer.step(text_of_step(trainer.options(), step), inner_rate).loss;
      if (world.rank() == 0) trained.losses.push_back(loss);
    }
    trained.states[static_cast<std::size_t>(world.rank())] = state_of(trainer, inner, how.measures);
  });
  return trained;
}

// A fragment is in flight for a step.
inline Replicated in_format(QuantizedFormat format, DType dtype = DType::f32) {
  return {{.replicas = 2, .sync_every = 4, .fragments = 2, .fragment_sync_delay = 1, .format = format},
          {.data = 2},
          ZeroStage::optimizer,
          dtype};
}

}  // namespace parity
