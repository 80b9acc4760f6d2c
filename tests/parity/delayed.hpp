// Training whose gradients are one step late, and the reference loop beside it: how tests train, and what they compare.
#pragma once
#include <cctype>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "parity.hpp"
#include "support/reference_loop.hpp"

namespace parity::delay {

inline constexpr int steps_of_training = 4;
inline double rate(int step) { return 3e-3 / (1 + step); }

// The results of a training, by its batches.
struct Training {
  std::vector<double> losses, norms, scales;
  std::vector<bool> updated;
  Pieces parameters;
  // Equal bits; norms of gradients that overflowed may be NaN.
  bool operator==(const Training& other) const {
    Comparer bits(equal_bits);
    return bits.numbers(losses, other.losses, "").empty() && bits.numbers(norms, other.norms, "").empty() &&
           scales == other.scales && updated == other.updated && bits.pieces(parameters, other.parameters, "").empty();
  }
};
using Trainings = std::vector<Training>;  // by rank

inline void note(Training& training, const StepResult& result) {
  if (!result.arrived) return;
  training.norms.push_back(result.gradient_norm);
  training.scales.push_back(result.loss_scale);
  training.updated.push_back(result.updated);
}

template <class Body>
Trainings on_ranks(Layout layout, const TrainingOptions& options, Body body) {
  Trainings trainings(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, layout.mesh()), options);
    Training& its = trainings[static_cast<std::size_t>(world.rank())];
    body(trainer, its);
    its.parameters = pieces_of(trainer, trainer.sharded().whole_values());
  });
  return trainings;
}

// options.delay_from: so many updates are made without the delay.
inline Trainings delayed(Layout layout, TrainingOptions options, bool finishes = true) {
  options.sharding.delay = 1;
  return on_ranks(layout, options, [&](Trainer& trainer, Training& its) {
    for (int t = 0; t < steps_of_training; ++t) {
      const StepResult result = trainer.step(text_of_step(options, t), rate(t));
      its.losses.push_back(result.loss);
      EXPECT_EQ(result.arrived, t != options.delay_from);
      note(its, result);
    }
    if (finishes) note(its, trainer.finish());
    EXPECT_FALSE(finishes && trainer.finish().arrived);
  });
}

// What the reference loop calls weights: the master weights of this rank's ranges, and the loss scale.
struct Weights {
  std::vector<Tensor> values;
  LossScale scale;
};

inline Weights weights_of(Trainer& trainer) {
  Weights weights{{}, trainer.loss_scale()};
  for (std::size_t i = 0; i < trainer.sharded().ranges().size(); ++i) {
    weights.values.push_back(trainer.optimizer().weights(i).clone());
  }
  return weights;
}

inline void give(Trainer& trainer, const Weights& weights) {
  trainer.sharded().wait_for_values();
  for (std::size_t i = 0; i < weights.values.size(); ++i) trainer.optimizer().weights(i).copy_from(weights.values[i]);
  trainer.optimizer().restore(trainer.optimizer().steps());
  trainer.loss_scale() = weights.scale;
}

// A synchronous trainer of the same layout, driven by the reference loop: options.delay_from steps without a delay, and then
// the others with it.
inline Trainings reference(Layout layout, TrainingOptions options, std::size_t delay) {
  options.sharding.measured_steps = 0;  // every rank has the whole weights at stage 0
  const auto from = static_cast<int>(std::exchange(options.delay_from, 0));
  return on_ranks(layout, options, [&](Trainer& trainer, Training& its) {
    const auto train = [&](Weights weights, std::size_t its_delay, int first, int steps) {
      return delayed_updates(
          std::move(weights), its_delay, steps,
          [&](int t, const Weights& at) {
            give(trainer, at);
            const StepResult result = trainer.compute_gradients(text_of_step(options, first + t));
            its.losses.push_back(result.loss);
            return result;
          },
          [&](int t, const Weights& before, StepResult result) {
            give(trainer, before);
            const double norm = result.gradient_norm;
            const double clip = options.clip_norm > 0 && norm > options.clip_norm ? options.clip_norm / norm : 1.0;
            result.updated = trainer.loss_scale().update(norm);
            note(its, result);
            if (result.updated) trainer.optimizer().step(rate(first + t), clip / result.loss_scale);
            return weights_of(trainer);
          });
    };
    give(trainer, train(train(weights_of(trainer), 0, 0, from), delay, from, steps_of_training - from));
  });
}

inline const std::map<std::string, OptimizerOptions> optimizers = {{"sgd", SGD::Options{.momentum = 0}},
                                                                   {"momentum", SGD::Options{.momentum = 0.9}},
                                                                   {"adamw", AdamW::Options{}},
                                                                   {"muon", Muon::Options{}}};

struct Case {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  const char* optimizer = "adamw";
  DType dtype = DType::f32;
  const char* schedule = "1f1b";
  std::string text() const {
    return fmt::format("dp {} tp {} pp {} cp {} ulysses {}, ZeRO {}, {}, {}, {}", layout.data, layout.tensor,
                       layout.pipeline, layout.ring, layout.ulysses, static_cast<int>(zero), optimizer, name(dtype),
                       schedule);
  }
};

inline TrainingOptions options_of(const Case& its) {
  TrainingOptions options = tiny(its.layout, its.dtype);
  options.model.layers = 4;
  options.model.heads = 8;
  options.model.hidden = 32;
  options.global_batch = 2L * its.layout.data * its.layout.pipeline;  // microbatches are accumulated
  options.sharding.zero = its.zero;
  options.optimizer = optimizers.at(its.optimizer);
  options.stages.schedule_name = its.schedule;
  return options;
}

inline const auto name_of = [](const auto& it) {
  std::string text = it.param.text();
  std::ranges::replace_if(
      text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return text;
};

}  // namespace parity::delay
