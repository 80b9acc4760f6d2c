#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "saved_training.hpp"
#include "stretto/layers/onebit_adam.hpp"

// Training of a model without layers, in which each rank has gradients of its own: by 1-bit Adam, or with sums by PowerSGD.
namespace stretto {

using NumbersByElement = std::map<std::string, double>;

// The gradient of an element: of a rank along the data axis, at a step from 1 on, by name and global index.
using OwnGradient = std::function<double(int rank, int step, const std::string& name, std::int64_t i)>;

inline double normal_gradient(int rank, int step, const std::string& name, std::int64_t i) {
  return random_normal(3, name, static_cast<std::uint64_t>(i + 10000 * step + 1000000 * rank)) + 0.5;
}
// Whole numbers from -2 to 2, but not 0 in the first step.
inline double integer_gradient(int rank, int step, const std::string& name, std::int64_t i) {
  return static_cast<double>((static_cast<std::int64_t>(name.size()) + 7 * i + 3 * rank + 5 * step * (i + 1)) % 5 - 2) +
         (step == 1 ? 3 : 0);
}

struct OwnGradientLayout {
  MeshShape mesh;
  ZeroStage stage = ZeroStage::optimizer;
  OptimizerOptions optimizer = OneBitAdam::Options{.freeze_step = 3};
  DType dtype = DType::f32;
  std::int64_t columns = 40;
  int microbatches = 1;
  PowerSGDOptions powersgd = {};
};

class OwnGradientTraining {
 public:
  OwnGradientTraining(const Communicator& world, const OwnGradientLayout& layout, OwnGradient gradient = normal_gradient,
                      std::uint64_t seed = 3)
      : mesh_(world, layout.mesh), microbatches_(layout.microbatches), gradient_(std::move(gradient)) {
    add_parameters(parameters_, mesh_, layout.columns);
    sharded_.emplace(parameters_, mesh_,
                     ShardedParameters::Options{.zero = layout.stage,
                                                .dtype = layout.dtype,
                                                .unit_bytes = 64,
                                                .measured_steps = 0,
                                                .powersgd = layout.powersgd});
    sharded_->initialise(seed);
    optimizer_ = make_optimizer(*sharded_, layout.optimizer);
  }

  // Computes the sums of a step, or each rank's own gradients. Each microbatch has all of the gradient, divided by their
  // number.
  void compute(int step) {
    sharded_->begin_step();
    for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
      for (const auto& used : parameters_.used()) {
        const InUse in_use(*sharded_, *used, Pass::backward);
        for (const Parameter* parameter : used->parameters) {
          const Tensor& to = parameter->gradient;
          for_each_run(*parameter, 0, to.size(), [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
            for (std::int64_t i = 0; i < count; ++i) {
              const double own = gradient_(mesh_.rank(Axis::data), step, parameter->name, whole + i) / microbatches_;
              to.set(at + i, to.at(at + i) + own);
            }
          });
        }
      }
      sharded_->end_microbatch();
    }
    sharded_->finish_sums();
  }
  void update(double lr = 1e-2, double gradient_scale = 0.5) { optimizer_->step(lr, gradient_scale); }
  void step(int number) {
    compute(number);
    update();
  }
  void steps(int first, int last) {
    for (int number = first; number <= last; ++number) step(number);
  }

  Optimizer& optimizer() { return *optimizer_; }
  const OneBitAdam& onebit() const { return dynamic_cast<const OneBitAdam&>(*optimizer_); }
  ShardedParameters& sharded() { return *sharded_; }

  // What this rank computes with, by name and global index.
  NumbersByElement values() {
    sharded_->wait_for_values();
    return by_element([](const Parameter& parameter) { return parameter.value; });
  }
  // The sums that an update takes, likewise. Collective.
  NumbersByElement sums() {
    const std::vector<Tensor> all = sharded_->whole_gradients();
    return by_element([&](const Parameter& parameter) { return all[parameter.index]; });
  }

 private:
  NumbersByElement by_element(const std::function<Tensor(const Parameter&)>& of) {
    NumbersByElement result;
    for (const auto& parameter : parameters_.all()) {
      const Tensor tensor = of(*parameter);
      for_each_run(*parameter, 0, parameter->elements(), [&](std::int64_t at, std::int64_t whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          result[fmt::format("{}[{}]", parameter->name, whole + i)] = tensor.at(at + i);
        }
      });
    }
    return result;
  }

  Mesh mesh_;
  int microbatches_;
  OwnGradient gradient_;
  Parameters parameters_;
  std::optional<ShardedParameters> sharded_;
  std::unique_ptr<Optimizer> optimizer_;
};

inline double largest_difference(const NumbersByElement& found, const NumbersByElement& expected) {
  double most = found.size() == expected.size() ? 0 : INFINITY;
  for (const auto& [element, value] : expected) most = std::max(most, std::abs(found.at(element) - value));
  return most;
}

// The values of each rank after a number of steps.
inline std::vector<NumbersByElement> trained_values(const OwnGradientLayout& layout, int steps,
                                                    const OwnGradient& gradient = normal_gradient) {
  std::vector<NumbersByElement> values(static_cast<std::size_t>(layout.mesh.ranks()));
  run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
    OwnGradientTraining training(world, layout, gradient);
    training.steps(1, steps);
    values[static_cast<std::size_t>(world.rank())] = training.values();
  });
  return values;
}

}  // namespace stretto
