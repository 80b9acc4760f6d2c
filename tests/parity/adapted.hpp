#pragma once
#include "parity.hpp"

// Training of adapters: what they begin with, and what a rank's trace has of them.
namespace parity {

inline bool is_factor(const std::string& name) { return name.find(".lora_") != std::string::npos; }

// B begins with other values than zeros, so that A has a gradient in the first step.
inline void begin_apart(Trainer& trainer) {
  ShardedParameters& sharded = trainer.sharded();
  for (std::size_t i = 0; i < sharded.ranges().size(); ++i) {
    const ShardedParameters::Range& range = sharded.ranges()[i];
    const Parameter& parameter = *trainer.parameters().all()[range.parameter];
    if (parameter.name.find("lora_B") == std::string::npos) continue;
    for_each_run(parameter, range.first, range.count, [&](std::int64_t to, std::int64_t whole, std::int64_t count) {
      for (std::int64_t k = 0; k < count; ++k) {
        range.value.set(to + k, 0.1 * random_normal(3, parameter.name, static_cast<std::uint64_t>(whole + k)));
      }
    });
  }
  sharded.share_values();
}

inline Pieces only(const Pieces& pieces, bool factors) {
  Pieces result;
  for (const auto& [name, piece] : pieces) {
    if (is_factor(name) == factors) result[name] = piece;
  }
  return result;
}
inline void keep_factors(Trace& trace) {
  for (Pieces& gradients : trace.gradients) gradients = only(gradients, true);
}

inline AdapterOptions all_linear(std::int64_t rank = 3) { return {.rank = rank, .alpha = 6, .targets = {"all-linear"}}; }

// Trained by one rank: the trace of options_of(cell) with adapters.
inline Trace adapted_on_one_rank(const TrainingOptions& options) {
  Trace trace;
  run_threads(1, [&](const Communicator& world) {
    Trainer trainer(Mesh(world, {}), on_one_rank(options));
    begin_apart(trainer);
    trace = advance(trainer, 0, trained_steps);
  });
  keep_factors(trace);
  return trace;
}

// What differs from one rank's trace on a layout; empty if nothing does.
inline std::string adapted_divergence(const Trace& expected, Layout layout, const TrainingOptions& options) {
  std::vector<Trace> traces = train(layout, options, begin_apart);
  std::string text;
  for (Trace& trace : traces) {
    keep_factors(trace);
    text += compare(expected, trace, parity_tolerance, Has::those_of_its_stage).all();
  }
  Trace without_gradients = expected;
  without_gradients.gradients.clear();
  return text + missing(without_gradients, traces);
}

}  // namespace parity
