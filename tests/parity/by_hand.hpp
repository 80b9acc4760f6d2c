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
  // Called instead of stage.compute(action, input).
  std::function<Tensor(PipelineStage& stage, const Action& action, Tensor input)> in_stage;
  std::function<double(std::int64_t step)> rate;  // the learning rate, if it is not 3e-3
  // Called behind a core's forward and backward.
  std::function<void(AttentionCore::Saved& saved)> in_attention;
  std::function<void(const Tensor& dqkv)> in_attention_backward;
  // Its core serves instead of the one that it gets.
  std::function<std::shared_ptr<const AttentionCore>(std::shared_ptr<const AttentionCore>)> around_attention;
  // The draw of a token (Tokens::draws); slot: of the global batch, and in the rank's own.
  std::function<std::int64_t(std::int64_t slot, std::int64_t own_slot, std::int64_t position)> draw;
  bool targets_in_order = false;  // a rank's targets are the first of each sequence, wherever its tokens are
};

// The record says one axis less, as if ranks had the whole gradient there.
inline void leave_out_of_sum(Parameter& parameter, Axis axis) {
  parameter.sum_gradient_over = parameter.sum_gradient_over - axis;
  parameter.whole_gradient_over = axis;
}

class FaultyAttention final : public AttentionCore {
 public:
  FaultyAttention(std::shared_ptr<const AttentionCore> core, const Fault& fault) : core_(std::move(core)), fault_(fault) {}
  Tensor forward(const Shape& shape, const QueriesKeysValues& of, Saved& saved) const override {
    Tensor result = core_->forward(shape, of, saved);
    if (fault_.in_attention) fault_.in_attention(saved);
    return result;
  }
  void backward(const Tensor& dattended, const Saved& saved, const QueriesKeysValues& gradients) const override {
    core_->backward(dattended, saved, gradients);
    if (fault_.in_attention_backward) fault_.in_attention_backward(gradients.q.tensor);
  }

 private:
  std::shared_ptr<const AttentionCore> core_;
  const Fault& fault_;
};

// As Fault::in_stage: in a step's second microbatch, a stage but the first computes with the message of the first one.
inline Tensor with_message_of_another(PipelineStage& stage, const Action& action, Tensor input) {
  thread_local Tensor before;
  if (action.kind != ActionKind::forward || !input) return stage.compute(action, std::move(input));
  const Tensor now = std::exchange(before, input.clone());
  return stage.compute(action, now && action.microbatch == 1 ? now : std::move(input));
}

class FaultyStage : public PipelineStage {
 public:
  FaultyStage(PipelineStage& stage, const Fault& fault) : stage_(stage), fault_(fault) {}
  Tensor compute(const Action& action, Tensor input) override {
    return fault_.in_stage ? fault_.in_stage(stage_, action, std::move(input)) : stage_.compute(action, std::move(input));
  }

 private:
  PipelineStage& stage_;
  const Fault& fault_;
};

class FaultyUse : public ParameterUse {
 public:
  FaultyUse(ParameterUse& use, const Fault& fault) : use_(use), fault_(fault) {}
  void begin(const UsedParameters& used, Pass pass) override {
    use_.begin(used, pass);
    for (const Parameter* parameter : used.parameters) {
      if (parameter->name != fault_.not_gathered || pass != Pass::backward) continue;
      right_ = parameter->value.clone();
      parameter->value.zero();
    }
  }
  void end(const UsedParameters& used, Pass pass) override {
    for (const Parameter* parameter : used.parameters) {
      if (parameter->name == fault_.not_gathered && pass == Pass::backward) parameter->value.copy_from(right_);
    }
    use_.end(used, pass);
  }

 private:
  ParameterUse& use_;
  const Fault& fault_;
  Tensor right_;
};

// Rank `world.rank()`'s trace of Trainer's steps, without clipping. Gradients are those of the first steps.
inline Trace train_by_hand(const Communicator& world, Layout layout, const TrainingOptions& options, const Fault& fault = {},
                           std::int64_t steps = trained_steps) {
  const Mesh mesh(world, layout.mesh());
  const std::int64_t slots = options.global_batch / layout.data;
  const Schedule schedule = options.stages.schedule(layout.pipeline, slots / options.micro_batch);
  const TensorParallel tensor_parallel = options.on(mesh.shape()).tensor_parallel(mesh, Stream::inline_());
  Parameters parameters;
  std::shared_ptr<const AttentionCore> attention =
      std::make_shared<FaultyAttention>(options.on(mesh.shape()).attention(mesh, false), fault);
  if (fault.around_attention) attention = fault.around_attention(attention);
  const Decoder model(parameters, options.model, tensor_parallel, options.recompute,
                      options.stages.cut(options.model, schedule, mesh.rank(Axis::pipeline)), attention, options.adapters);
  Pipeline pipeline(mesh.over(Axis::pipeline), schedule,
                    {.tensor = tensor_parallel.has_own_rows() ? Communicator() : tensor_parallel.group});
  if (fault.in_records) fault.in_records(parameters);
  ShardedParameters sharded(parameters, mesh, options.sharding);
  sharded.initialise(options.seed);
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(sharded, options.optimizer);
  FaultyUse use(sharded, fault);
  const auto length = static_cast<std::size_t>(options.model.sequence);
  const std::vector<std::int64_t> positions =
      options.on(mesh.shape()).division().positions(options.model.sequence, mesh.rank(Axis::ring), mesh.rank(Axis::ulysses));
  Trace trace;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::vector<std::int32_t> tokens, targets;
    std::vector<std::int64_t> draws;
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      std::vector<std::int32_t> whole(length), next(length);
      text_of_step(options, step)(mesh.rank(Axis::data) * slots + slot, whole.data(), next.data());
      for (std::size_t row = 0; row < positions.size(); ++row) {
        tokens.push_back(whole[static_cast<std::size_t>(positions[row])]);
        targets.push_back(next[fault.targets_in_order ? row : static_cast<std::size_t>(positions[row])]);
        if (fault.draw) draws.push_back(fault.draw(mesh.rank(Axis::data) * slots + slot, slot, positions[row]));
      }
    }
    const auto mean_over = static_cast<double>(options.global_batch * options.model.sequence);
    Batch batch = Batch::of(tokens, targets, positions);
    if (fault.draw) batch.draws = Tensor::of(draws);
    Microbatches microbatches(model, use, batch, options.micro_batch, 1 / mean_over, [&] { sharded.end_microbatch(); });
    FaultyStage stage(microbatches, fault);
    sharded.begin_step();
    pipeline.run(stage, model.message(options.micro_batch * static_cast<std::int64_t>(positions.size())),
                 options.sharding.dtype);
    sharded.finish_sums();
    double loss = 0;
    for (const Decoder::Loss& each : microbatches.losses()) loss += each.loss() / mean_over;
    if (fault.in_sums) fault.in_sums(sharded);
    world.all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum, Stream::inline_()).wait();
    trace.losses.push_back(loss / layout.tensor);
    trace.norms.push_back(gradient_norm(sharded));
    const auto pieces = [&](const std::vector<Tensor>& tensors) {
      Pieces result;
      for (const auto& parameter : parameters.all()) {
        if (parameter->is_here && tensors[parameter->index])
          result[parameter->name] = piece_of(*parameter, tensors[parameter->index]);
      }
      return result;
    };
    optimizer->step(fault.rate ? fault.rate(step) : 3e-3, 1);
    if (step < trained_steps) trace.gradients.push_back(pieces(sharded.whole_gradients()));
    if (step + 1 == steps) trace.parameters = pieces(sharded.whole_values());
  }
  return trace;
}

// Compares rank 1, the second of a tensor-parallel pair, of a model that trains with the fault.
inline Comparison with_fault(Layout layout, const TrainingOptions& options, const Trace& expected, const Fault& fault,
                             Has has = Has::all) {
  Comparison result;
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const Trace trace = train_by_hand(world, layout, options, fault);
    if (world.rank() == 1) result = compare(expected, trace, parity_tolerance, has);
  });
  return result;
}

}  // namespace parity
