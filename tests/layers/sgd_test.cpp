#include "stretto/layers/sgd.hpp"

#include <gmock/gmock.h>

#include "two_parameters.hpp"

namespace stretto {
namespace {

// Two steps computed by hand: momentum, the scale of the gradient, and weight decay of w alone, as a part of the gradient.
TEST(SGD, StepsAsPyTorch) {
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    Parameter& weight = parameters.add(Parameter::whole("w", {2}, token_axes, {.initial = {2, 0}}));
    Parameter& bias = parameters.add(Parameter::whole("b", {1}, token_axes, {.initial = {2, 0}, .decays = false}));
    parameters.used_together({&weight, &bias});
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    sharded.initialise(1);
    SGD optimizer(sharded, {.momentum = 0.5, .weight_decay = 0.25});
    const auto step = [&] {
      sum_gradients(sharded, parameters, [](const std::string&, std::int64_t i) { return i == 0 ? 4 : -8; });
      optimizer.step(0.5, 0.5);
    };
    step();
    EXPECT_EQ(weight.value.at(0), 2 - 0.5 * (2 + 0.5));
    EXPECT_EQ(weight.value.at(1), 2 - 0.5 * (-4 + 0.5));
    EXPECT_EQ(bias.value.at(0), 2 - 0.5 * 2);
    step();
    EXPECT_EQ(weight.value.at(0), 0.75 - 0.5 * (0.5 * 2.5 + 2 + 0.25 * 0.75));
    EXPECT_EQ(bias.value.at(0), 1 - 0.5 * (0.5 * 2 + 2));
  });
}

TEST(SGD, KeepsNoStateWithoutMomentum) {
  EXPECT_EQ(to_string(SGD::Options{}.kind()), "sgd (momentum)");
  EXPECT_EQ(to_string(SGD::Options{.momentum = 0}.kind()), "sgd without slots");
}

TEST(SGD, RefusesAMomentumThatGrows) {
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    parameters.add(Parameter::whole("w", {2}, token_axes, {}));
    ShardedParameters sharded(parameters, mesh);
    for (const double momentum : {-0.5, 1.0}) EXPECT_THROW(SGD(sharded, {.momentum = momentum}), Error);
  });
}

}  // namespace
}  // namespace stretto
