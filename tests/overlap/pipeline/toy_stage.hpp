#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "stretto/overlap/pipeline.hpp"

namespace stretto {

// A model in whole numbers below a prime, so that results are exact. Part k maps x to (k + 2) x + microbatch, and its weight
// takes the products of x and gradient up in an order that matters.
class ToyStage final : public PipelineStage {
 public:
  static constexpr int prime = 1009;
  static Shape message() { return {3, 5}; }

  ToyStage(const Schedule& schedule, int stage, int seed = 0) : schedule_(schedule), stage_(stage), seed_(seed) {}
  std::function<void(const Action&)> before = [](const Action&) {};
  bool forward_only = false;
  bool swaps_first_two = false;  // a fault: microbatch 0 is computed as number 1, and 1 as 0

  Tensor compute(const Action& action, Tensor input) override {
    before(action);
    const int part = schedule_.part_of(stage_, action.chunk);
    if (action.kind == ActionKind::forward) return forward(part, action.microbatch, input);
    if (action.kind == ActionKind::backward_weight) return weigh(part, action.microbatch);
    const Tensor gradient = part + 1 == schedule_.parts() ? loss_gradient(action.microbatch) : input;
    gradients_[{part, action.microbatch}] = gradient.clone();
    if (action.kind == ActionKind::backward) weigh(part, action.microbatch);
    return map(gradient, [&](double g) { return (part + 2) * g; });
  }

  const std::map<int, std::vector<double>>& weights() const { return weights_; }  // by part
  const std::map<int, std::vector<double>>& outputs() const { return outputs_; }  // of the last part, by microbatch

 private:
  using Key = std::pair<int, int>;

  static Tensor map(const Tensor& from, const std::function<double(double)>& f) {
    Tensor result(from.shape(), from.dtype());
    for (std::int64_t i = 0; i < from.size(); ++i) result.set(i, std::fmod(f(from.at(i)), prime));
    return result;
  }
  Tensor numbers(int microbatch, int salt) const {
    Tensor result(message(), DType::f64);
    for (std::int64_t i = 0; i < result.size(); ++i) {
      result.set(i, static_cast<double>((i * 7 + microbatch * 13 + salt + seed_) % prime));
    }
    return result;
  }
  Tensor loss_gradient(int microbatch) const { return numbers(microbatch, 5); }

  Tensor forward(int part, int microbatch, const Tensor& input) {
    const int number = swaps_first_two && microbatch < 2 ? 1 - microbatch : microbatch;
    const Tensor x = part == 0 ? numbers(number, 1) : input;
    if (!forward_only) inputs_[{part, microbatch}] = x.clone();
    Tensor y = map(x, [&](double each) { return (part + 2) * each + microbatch; });
    if (part + 1 == schedule_.parts()) {
      for (std::int64_t i = 0; i < y.size(); ++i) outputs_[microbatch].push_back(y.at(i));
    }
    return y;
  }
  Tensor weigh(int part, int microbatch) {
    const Tensor x = inputs_.extract({part, microbatch}).mapped();
    const Tensor g = gradients_.extract({part, microbatch}).mapped();
    std::vector<double>& weight = weights_[part];
    weight.resize(static_cast<std::size_t>(x.size()));
    for (std::int64_t i = 0; i < x.size(); ++i) {
      double& each = weight[static_cast<std::size_t>(i)];
      each = std::fmod(31 * each + x.at(i) * g.at(i), prime);
    }
    return {};
  }

  const Schedule& schedule_;
  int stage_, seed_;
  std::map<Key, Tensor> inputs_, gradients_;  // by part and microbatch
  std::map<int, std::vector<double>> weights_, outputs_;
};

}  // namespace stretto
