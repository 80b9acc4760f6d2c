// Graphs of the common training steps of a transformer.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/fail.hpp"
#include "planning/step/step_units.hpp"

namespace stretto {
namespace {

using Nodes = std::vector<int>;

// Adds the nodes layer by layer. `ready_` holds the nodes that the next node takes its input from.
class StepBuilder {
 public:
  StepBuilder(const TransformerStep& step, bool gathers) : step_(step), gathers_(gathers && step.data.size > 1) {
    const std::size_t layers = step.layers.size();
    require(layers > 0 && step.parameters.size() == layers,
            "{} layers have the sizes of {}; give as many of both, at least one.", layers, step.parameters.size());
    require(step.tensor.size == 1 || step.activations > 0,
            "Layers are cut over {} ranks, but have {} activations; say how many elements a layer's input has.",
            step.tensor.size, step.activations);
    require(step.backward_parts >= 1, "A layer's backward cannot fall into {} parts; give at least one.",
            step.backward_parts);
    graph_.most_live_gathers = step.most_live_gathers;
    gathered_.assign(layers, -1);
    gradients_.resize(layers);
  }

  StepGraph build() {
    const int layers = static_cast<int>(step_.layers.size());
    for (layer_ = 0; layer_ < layers; ++layer_) forward();
    for (layer_ = layers - 1; layer_ >= 0; --layer_) backward(layer_ == layers - 1);
    for (layer_ = layers - 1; layer_ >= 0; --layer_) update();
    check(graph_);
    return std::move(graph_);
  }

 private:
  int add(StepNode node, const char* what) {
    node.name = fmt::format("{} {}", what, layer_);
    node.layer = layer_;
    for (const int each : ready_) node.after.push_back({each});
    return graph_.add(std::move(node));
  }
  int compute(const char* what, Phase phase, double seconds, bool divisible = false) {
    StepNode node;
    node.phase = phase;
    node.seconds = seconds;
    node.divisible = divisible;
    node.chunk_seconds = divisible ? step_.chunk_seconds : 0;
    // Every part of a layer waits for the gather, although the first alone would do: the layer tier may reorder the parts.
    if (gathered_[layer_] >= 0) node.after.push_back({gathered_[layer_]});
    return add(std::move(node), what);
  }
  int communicate(const char* what, Phase phase, const StepCollective& collective) {
    StepNode node;
    node.phase = phase;
    node.collective = collective;
    return add(std::move(node), what);
  }
  int activations(const char* what, Phase phase, Collective kind) {
    return communicate(what, phase, {kind, Payload::activation, step_.activations, step_.activation_dtype, step_.tensor});
  }
  int of_parameters(const char* what, Phase phase, Collective kind, Payload payload, DType dtype, std::int64_t elements) {
    StepCollective collective{kind, payload, elements, dtype, step_.data};
    if (kind == Collective::all_reduce) collective.gathers_as = step_.parameter_dtype;
    return communicate(what, phase, collective);
  }
  void gather(const char* what, Phase phase) {
    const Nodes input = std::exchange(ready_, {});  // the gather of weights does not wait for the layer's input
    gathered_[layer_] = of_parameters(what, phase, Collective::all_gather, Payload::parameter, step_.parameter_dtype,
                                      step_.parameters[layer_]);
    ready_ = input;
  }

  void forward() {
    const double seconds = step_.layers[layer_].forward;
    if (gathers_) gather("gather forward", Phase::forward);
    if (step_.tensor.size == 1) {
      ready_ = {compute("forward", Phase::forward, seconds)};
    } else {
      const double attention = seconds * step_.attention_share;
      const double products = (seconds - attention) / 12;
      block(Phase::forward, {"gather of attention", "qkv", "projection", "scatter of attention"}, 3 * products, attention,
            products);
      block(Phase::forward, {"gather of mlp", "mlp up", "mlp down", "scatter of mlp"}, 4 * products, 0, 4 * products);
    }
  }

  struct BlockNames {
    const char *gather, *into, *out, *scatter;
  };
  void block(Phase phase, const BlockNames& names, double into, double attention, double out) {
    ready_ = {activations(names.gather, phase, Collective::all_gather)};
    ready_ = {compute(names.into, phase, into, true)};
    if (attention > 0) ready_ = {compute("attention", phase, attention)};
    ready_ = {compute(names.out, phase, out, true)};
    ready_ = {activations(names.scatter, phase, Collective::reduce_scatter)};
  }

  struct BackwardNames {
    const char *gather, *out, *out_weights, *into, *into_weights, *scatter;
  };
  // Autograd's order: each product's gradient with respect to its input, then to its weights, then the product before it.
  void backward_block(const BackwardNames& names, double out, double attention, double into) {
    const Phase phase = Phase::backward;
    ready_ = {activations(names.gather, phase, Collective::all_gather)};
    const int from_above = compute(names.out, phase, out, true);
    has_gradients(compute(names.out_weights, phase, out), out);
    ready_ = {from_above};
    if (attention > 0) ready_ = {compute("attention backward", phase, attention)};
    const int to_below = compute(names.into, phase, into, true);
    has_gradients(compute(names.into_weights, phase, into), into);
    ready_ = {to_below};
    ready_ = {activations(names.scatter, phase, Collective::reduce_scatter)};
  }

  void backward(bool is_gathered) {
    const double seconds = step_.layers[layer_].backward;
    if (gathers_ && !is_gathered) gather("gather backward", Phase::backward);
    whole_ = 0;
    given_ = 0;
    if (step_.tensor.size == 1) {
      whole_ = parts();
      for (int part = 0; part < parts(); ++part) {
        ready_ = {compute("backward", Phase::backward, seconds / parts())};
        has_gradients(ready_.front(), 1);
      }
    } else {
      const double attention = seconds * step_.attention_share;
      const double products = (seconds - attention) / 24;  // 12 products, each with respect to input and weights
      whole_ = 12 * products;
      backward_block({"gather of mlp backward", "mlp down backward", "mlp down weights", "mlp up backward", "mlp up weights",
                      "scatter of mlp backward"},
                     4 * products, 0, 4 * products);
      backward_block({"gather of attention backward", "projection backward", "projection weights", "qkv backward",
                      "qkv weights", "scatter of attention backward"},
                     products, attention, 3 * products);
    }
    if (parts() == 1) communicate_gradients(step_.parameters[layer_]);
  }

  int parts() const { return gathers_ ? 1 : step_.backward_parts; }

  // `computation` completes the gradients of `share`, a part of `whole_`.
  void has_gradients(int computation, double share) {
    pending_.push_back(computation);
    if (parts() == 1) return;
    const std::int64_t parameters = step_.parameters[layer_];
    const double before = given_ / whole_;
    given_ += share;
    const auto until = [&](double part) {
      return static_cast<std::int64_t>(std::llround(part * static_cast<double>(parameters)));
    };
    communicate_gradients(until(given_ / whole_) - until(before));
  }

  void communicate_gradients(std::int64_t elements) {
    const Nodes made = std::exchange(pending_, {});
    if (step_.data.size == 1 || elements == 0) {
      gradients_[layer_].insert(gradients_[layer_].end(), made.begin(), made.end());
      return;
    }
    const Nodes output = std::exchange(ready_, made);
    const Collective kind = gathers_ ? Collective::reduce_scatter : Collective::all_reduce;
    gradients_[layer_].push_back(
        of_parameters("gradients", Phase::backward, kind, Payload::gradient, step_.gradient_dtype, elements));
    ready_ = output;
  }

  // The next step's gathers of the layer wait for the update, or its forward where nothing is gathered.
  void update() {
    ready_ = gradients_[layer_];
    StepNode node;
    node.phase = Phase::update;
    node.seconds = step_.layers[layer_].update;
    node.elementwise = true;
    const int updated = add(std::move(node), "update");
    for (StepNode& each : graph_.nodes) {
      if (each.layer != layer_) continue;
      const bool gathers = each.collective && each.collective->payload == Payload::parameter;
      const bool computes = !each.collective && each.phase == Phase::forward;
      if (gathers_ ? gathers : computes) each.after.push_back({updated, 1});
    }
  }

  const TransformerStep& step_;
  const bool gathers_;
  StepGraph graph_;
  int layer_ = 0;
  Nodes ready_;
  Nodes pending_;                 // computations whose gradients are not communicated yet
  double whole_ = 0;              // the part of a layer's backward that makes gradients, in seconds or in parts
  double given_ = 0;              // how much of whole_ is done
  Nodes gathered_;                // by layer, the gather that its computation needs
  std::vector<Nodes> gradients_;  // by layer, the nodes that its update waits for
};

}  // namespace

StepGraph data_parallel_step(const TransformerStep& step) { return StepBuilder(step, false).build(); }

StepGraph zero3_step(const TransformerStep& step) { return StepBuilder(step, true).build(); }

}  // namespace stretto
