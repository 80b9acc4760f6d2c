#pragma once
#include "parity.hpp"
#include "stretto/layers/loss_scale.hpp"

// A trainer from the library's parts, into which a test may put one fault. The comparison with an untouched trainer must
// then fail.
namespace parity {

struct Fault {
  std::function<void(Parameters&)> in_records;
  std::string not_gathered;                         // a parameter whose values are zeros during its uses in backward
  std::function<void(ShardedParameters&)> in_sums;  // called when all sums are done
};

class FaultyUse : public ParameterUse {
 public:
  FaultyUse(ParameterUse& use, const Fault& fault) : use_(use), fault_(fault) {}
  void begin(const std::vector<Parameter*>& parameters, Pass pass) override {
    use_.begin(parameters, pass);
    for (const Parameter* parameter : parameters) {
      if (parameter->name != fault_.not_gathered || pass != Pass::backward) continue;
      right_ = parameter->value.clone();
      parameter->value.zero();
    }
  }
  void end(const std::vector<Parameter*>& parameters, Pass pass) override {
    for (const Parameter* parameter : parameters) {
      if (parameter->name == fault_.not_gathered && pass == Pass::backward) parameter->value.copy_from(right_);
    }
    use_.end(parameters, pass);
  }

 private:
  ParameterUse& use_;
  const Fault& fault_;
  Tensor right_;
};

// Rank `world.rank()`'s trace of gpt::Trainer's steps, without clipping.
inline Trace train_by_hand(const Communicator& world, Layout layout, const gpt::TrainerOptions& options,
                           const Fault& fault = {}) {
  const Mesh mesh(world, {.tensor = layout.tensor, .data = layout.data});
  Parameters parameters;
  const gpt::Model model(parameters, options.model, {.group = mesh.over(Axis::tensor)});
  if (fault.in_records) fault.in_records(parameters);
  ShardedParameters sharded(parameters, mesh, options.sharding);
  sharded.initialise(options.seed);
  AdamWOptimizer optimizer(sharded, options.adamw);
  FaultyUse use(sharded, fault);
  const std::int64_t slots = options.global_batch / layout.data;
  const auto length = static_cast<std::size_t>(options.model.sequence);
  Trace trace;
  for (std::int64_t step = 0; step < trained_steps; ++step) {
    double loss = 0;
    sharded.begin_step();
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      std::vector<std::int32_t> tokens(length);
      std::vector<std::int32_t> targets(length);
      text_of_step(options, step)(mesh.rank(Axis::data) * slots + slot, tokens.data(), targets.data());
      const gpt::Batch batch = gpt::Batch::of(tokens, targets, options.model.sequence);
      const auto mean_over = static_cast<double>(options.global_batch * options.model.sequence);
      loss += model.loss(batch, 1 / mean_over, use).loss() / mean_over;
      sharded.end_microbatch();
    }
    sharded.finish_sums();
    if (fault.in_sums) fault.in_sums(sharded);
    world.all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum, Stream::inline_());
    trace.losses.push_back(loss / layout.tensor);
    trace.norms.push_back(gradient_norm(sharded));
    const auto pieces = [&](const std::vector<Tensor>& tensors) {
      Pieces result;
      for (const auto& parameter : parameters.all()) {
        result[parameter->name] = piece_of(*parameter, tensors[parameter->index]);
      }
      return result;
    };
    optimizer.step(3e-3, 1);
    trace.gradients.push_back(pieces(sharded.whole_gradients()));
    if (step + 1 == trained_steps) trace.parameters = pieces(sharded.whole_values());
  }
  return trace;
}

}  // namespace parity
