#include <fmt/format.h>

#include <algorithm>

#include "core/fail.hpp"
#include "layers/checkpoint/checkpoint_index.hpp"
#include "layers/checkpoint/piece_copy.hpp"
#include "layers/checkpoint/quantization_state.hpp"
#include "layers/checkpoint/state_tensors.hpp"
#include "layers/note_number.hpp"
#include "layers/optimizer/local_errors.hpp"
#include "layers/served/served_shards.hpp"
#include "stretto/layers/checkpoint.hpp"

namespace stretto {

std::int64_t LoadedCheckpoint::number(const std::string& note, std::int64_t otherwise) const {
  return number_of(notes, note, otherwise);
}

std::string choices_of_checkpoint(const std::string& checkpoint) { return read_index(checkpoint).choices; }
LoadedCheckpoint read_notes(const std::string& checkpoint) {
  const CheckpointIndex index = read_index(checkpoint);
  return {.step = index.step,
          .optimizer_steps = index.optimizer_steps,
          .notes = index.notes,
          .trained_only = index.trained_only,
          .replicas = index.replicas};
}

LoadedCheckpoint load_checkpoint(ShardedParameters& parameters, Optimizer& optimizer, const std::string& checkpoint,
                                 bool with_optimizer, int replica) {
  const CheckpointIndex index = read_index(checkpoint, replica);
  require(!with_optimizer || to_string(index.optimizer) == to_string(optimizer.kind()),
          "{} was saved by {}, but this optimizer is {}; train on with the one that saved it, or load the values alone.",
          checkpoint, to_string(index.optimizer), to_string(optimizer.kind()));
  require(!with_optimizer || !index.has_late || has_late(parameters.options()),
          "{} has gradients that no update has taken yet, because its training applies them one step late; train on with a "
          "delay of 1, or load the values alone.",
          checkpoint);
  require(
      !with_optimizer || !index.in_flight || parameters.options().saves_versions,
      "{} was saved with microbatches under way, which read older weights; train on with checkpoints in flight, or load the "
      "values alone.",
      checkpoint);
  CheckpointShards shards(checkpoint, index);
  for (const auto& entry : index.tensors) {
    const std::string& name = entry.first;
    const bool known =
        std::ranges::any_of(parameters.parameters().all(), [&](const auto& each) { return each->global_name() == name; });
    require(known, "{} has a parameter {}, which this model has not; give the sizes of the model that was saved.",
            checkpoint, name);
  }
  for (const auto& parameter : parameters.parameters().all()) {
    const auto saved = index.tensors.find(parameter->global_name());
    const bool may_lack = (parameter->is_adapter && !with_optimizer) || (!parameter->trainable && index.trained_only);
    if (saved == index.tensors.end() && may_lack) continue;
    require(saved != index.tensors.end(),
            "{} has no parameter {}, which this model has; give the sizes of the model that was saved.", checkpoint,
            parameter->global_name());
    require(saved->second.shape == parameter->global_shape, "{} has {} of shape [{}], but this model's is [{}].", checkpoint,
            parameter->global_name(), fmt::join(saved->second.shape, ", "), fmt::join(parameter->global_shape, ", "));
  }
  for (const ShardedParameters::Range& range : parameters.ranges()) {
    const Parameter& parameter = *parameters.parameters().all()[range.parameter];
    if (!with_optimizer || !index.in_flight || !parameter.trainable) continue;
    const std::int64_t saved = index.tensors.at(parameter.global_name()).older;
    require(
        saved == saved_older_versions(parameters),
        "{} was saved with microbatches under way and {} older versions of {}, of which this job keeps {}; train on with "
        "the schedule and the number of stages that saved it, or load the values alone.",
        checkpoint, saved, parameter.global_name(), saved_older_versions(parameters));
  }
  LoadedCheckpoint loaded{.step = index.step,
                          .optimizer_steps = with_optimizer ? index.optimizer_steps : 0,
                          .notes = index.notes,
                          .trained_only = index.trained_only,
                          .replicas = index.replicas};
  if (parameters.is_served()) {
    parameters.read_at_servers([servers = parameters.servers(), checkpoint, with_optimizer] {
      read_served_shards(*servers, checkpoint, with_optimizer);
    });
    return loaded;
  }
  parameters.wait_for_late();
  for (std::size_t i = 0; i < parameters.ranges().size(); ++i) {
    const ShardedParameters::Range& range = parameters.ranges()[i];
    const Parameter& parameter = *parameters.parameters().all()[range.parameter];
    if (!index.tensors.contains(parameter.global_name())) continue;
    const std::size_t tensors = with_optimizer ? most_tensors(parameters, optimizer.kind()) : 1;
    for (std::size_t number = 0; number < tensors; ++number) {
      const bool late = is_late(optimizer, number);
      const Tensor state = tensor_of(parameters, optimizer, i, number);
      if (!state || (late && !index.has_late) || (age_of(optimizer.kind(), number) > 0 && !index.in_flight)) continue;
      read_elements(
          parameter, range.first, range.count,
          [&](const std::string& name) { return tensor_name(optimizer.kind(), number, name); },
          index.tensors.at(parameter.global_name()), shards, state, late);
    }
    optimizer.release(range.unit);
  }
  if (has_late(parameters.options())) parameters.set_late(with_optimizer && index.has_late);
  parameters.set_in_flight(with_optimizer && index.in_flight);
  if (with_optimizer) {
    optimizer.read_notes(index.notes);
    parameters.set_updates(index.optimizer_steps);
    restore_quantization(parameters, index, shards);
    restore_local_errors(parameters, index, shards);
  }
  return loaded;
}

}  // namespace stretto
