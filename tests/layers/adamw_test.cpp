#include "stretto/layers/adamw.hpp"

#include <gmock/gmock.h>

#include "two_parameters.hpp"

namespace stretto {
namespace {

// Two steps computed by hand: m and v, their bias corrections, and weight decay.
TEST(AdamW, StepsAsThePaperSays) {
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    Parameter& weight = parameters.add(Parameter::whole("w", {2}, token_axes, {.initial = {2, 0}}));
    Parameter& bias = parameters.add(Parameter::whole("b", {1}, token_axes, {.initial = {2, 0}, .decays = false}));
    parameters.used_together({&weight, &bias});
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    sharded.initialise(1);
    AdamW optimizer(sharded, {.beta1 = 0.5, .beta2 = 0.75, .epsilon = 0, .weight_decay = 0.1});
    const auto state_of = [&](const Parameter& parameter) {
      for (std::size_t i = 0; i < sharded.ranges().size(); ++i) {
        if (sharded.ranges()[i].parameter == parameter.index) return optimizer.states()[i];
      }
      return Optimizer::State();
    };
    sum_gradients(sharded, parameters,
                  [](const std::string& name, std::int64_t i) { return name == "b" || i == 0 ? 4 : -8; });
    optimizer.step(0.01, 0.5);
    // After one step the corrected m / sqrt(v) is the gradient's sign.
    EXPECT_DOUBLE_EQ(weight.value.at(0), 2 * (1 - 0.001) - 0.01);
    EXPECT_DOUBLE_EQ(weight.value.at(1), 2 * (1 - 0.001) + 0.01);
    EXPECT_DOUBLE_EQ(bias.value.at(0), 2 - 0.01);
    EXPECT_DOUBLE_EQ(state_of(bias).slots[0].at(0), 1);  // half of the scaled gradient, 2
    EXPECT_DOUBLE_EQ(state_of(bias).slots[1].at(0), 1);  // a quarter of its square
    sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 0; });
    optimizer.step(0.01, 1);
    EXPECT_DOUBLE_EQ(bias.value.at(0), 1.99 - 0.01 * (0.5 / 0.75) / std::sqrt(0.75 / 0.4375));
    EXPECT_EQ(optimizer.steps(), 2);
  });
}

}  // namespace
}  // namespace stretto
