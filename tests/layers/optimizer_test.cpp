// The norm of sharded gradients, the optimizer and the learning rate.
#include "stretto/layers/optimizer.hpp"

#include <gmock/gmock.h>

#include "two_parameters.hpp"

namespace stretto {
namespace {

// All gradients are 1, so the squared norm is the number of elements of the whole model, each counted once.
TEST(GradientNorm, CountsEveryElementOnce) {
  for (const ZeroStage stage : zero_stages) {
    for (const MeshShape shape : {MeshShape{},
                                  {{Axis::tensor, 2}},
                                  {{Axis::data, 3}},
                                  {{Axis::tensor, 3}, {Axis::data, 2}},
                                  {{Axis::tensor, 4}, {Axis::data, 2}}}) {
      run_threads(static_cast<int>(shape.ranks()), [&](const Communicator& world) {
        const Mesh mesh(world, shape);
        Parameters parameters;
        add_parameters(parameters, mesh);
        ShardedParameters sharded(parameters, mesh, {.zero = stage, .dtype = DType::f64});
        sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
        EXPECT_EQ(gradient_norm(sharded), 7) << "sqrt(40 + 9)";
      });
    }
  }
}

// The control: a record that says that each tensor-parallel rank has computed a part of the gradient.
TEST(GradientNorm, GoesByTheRecord) {
  run_threads(2, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::tensor, 2}});
    Parameters parameters;
    add_parameters(parameters, mesh);
    parameters.all()[1]->sum_gradient_over = token_axes | Axis::tensor;
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 1; });
    EXPECT_DOUBLE_EQ(gradient_norm(sharded), std::sqrt(40 + 2 * 2 * 9));
  });
}

TEST(CosineSchedule, WarmsUpThenFallsToTheFloor) {
  const CosineSchedule schedule{.peak = 1, .floor = 0.2, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1);
  EXPECT_DOUBLE_EQ(schedule.at(6), 0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(schedule.at(8), 0.6);
  EXPECT_DOUBLE_EQ(schedule.at(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.at(1000), 0.2);
  EXPECT_DOUBLE_EQ(CosineSchedule{.peak = 3}.at(0), 3);  // without a warm-up
}

// Two steps computed by hand: m and v, their bias corrections, and weight decay.
TEST(AdamWOptimizer, StepsAsThePaperSays) {
  run_threads(1, [](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    Parameter& weight = parameters.add({.name = "w", .global_shape = {2}, .first = {0}, .extents = {2}, .initial = {2, 0}});
    Parameter& bias =
        parameters.add({.name = "b", .global_shape = {1}, .first = {0}, .extents = {1}, .initial = {2, 0}, .decays = false});
    parameters.used_together({&weight, &bias});
    ShardedParameters sharded(parameters, mesh, {.dtype = DType::f64});
    sharded.initialise(1);
    AdamWOptimizer optimizer(sharded, {.beta1 = 0.5, .beta2 = 0.75, .epsilon = 0, .weight_decay = 0.1});
    const auto state_of = [&](const Parameter& parameter) {
      for (std::size_t i = 0; i < sharded.ranges().size(); ++i) {
        if (sharded.ranges()[i].parameter == parameter.index) return optimizer.states()[i];
      }
      return AdamWOptimizer::State();
    };
    sum_gradients(sharded, parameters,
                  [](const std::string& name, std::int64_t i) { return name == "b" || i == 0 ? 4 : -8; });
    optimizer.step(0.01, 0.5);
    // After one step the corrected m / sqrt(v) is the gradient's sign.
    EXPECT_DOUBLE_EQ(weight.value.at(0), 2 * (1 - 0.001) - 0.01);
    EXPECT_DOUBLE_EQ(weight.value.at(1), 2 * (1 - 0.001) + 0.01);
    EXPECT_DOUBLE_EQ(bias.value.at(0), 2 - 0.01);
    EXPECT_DOUBLE_EQ(state_of(bias).m.at(0), 1);  // half of the scaled gradient, 2
    EXPECT_DOUBLE_EQ(state_of(bias).v.at(0), 1);  // a quarter of its square
    sum_gradients(sharded, parameters, [](const std::string&, std::int64_t) { return 0; });
    optimizer.step(0.01, 1);
    EXPECT_DOUBLE_EQ(bias.value.at(0), 1.99 - 0.01 * (0.5 / 0.75) / std::sqrt(0.75 / 0.4375));
    EXPECT_EQ(optimizer.steps(), 2);
  });
}

// How elements are divided over ranks changes no bit, also where a share begins inside a SIMD vector. The control: another
// learning rate.
TEST(AdamWOptimizer, GivesTheSameBitsAtEveryStageOnAnyNumberOfRanks) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto trained = [&](int ranks, ZeroStage stage, double lr = 1e-2) {
      std::vector<std::vector<double>> numbers(static_cast<std::size_t>(ranks));
      run_threads(ranks, [&](const Communicator& world) {
        const Mesh mesh(world, {{Axis::data, ranks}});
        Parameters parameters;
        add_parameters(parameters, mesh);
        ShardedParameters sharded(parameters, mesh, {.zero = stage, .dtype = dtype});
        sharded.initialise(1);
        AdamWOptimizer optimizer(sharded, {});
        for (int step = 0; step < 3; ++step) {
          sum_gradients(sharded, parameters, [&](const std::string& name, std::int64_t i) {
            return random_normal(3, name, static_cast<std::uint64_t>(i + step));
          });
          optimizer.step(lr, 0.7);
        }
        for (const Tensor& value : sharded.whole_values()) {
          for (std::int64_t i = 0; i < value.size(); ++i)
            numbers[static_cast<std::size_t>(world.rank())].push_back(value.at(i));
        }
      });
      for (const auto& each : numbers) EXPECT_EQ(each, numbers.front());
      return numbers.front();
    };
    const std::vector<double> expected = trained(1, ZeroStage::none);
    for (const ZeroStage stage : zero_stages) {
      for (const int ranks : {1, 2, 3, 5})
        EXPECT_EQ(trained(ranks, stage), expected) << ranks << " " << static_cast<int>(stage);
    }
    EXPECT_NE(trained(2, ZeroStage::optimizer, 2e-2), expected);
  }
}

}  // namespace
}  // namespace stretto
