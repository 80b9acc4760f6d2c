// The mesh, the norm of a divided gradient, and the learning rate.
#include "stretto/layers/optimizer.hpp"

#include <gmock/gmock.h>

#include "stretto/stretto.hpp"

namespace stretto {
namespace {

TEST(Mesh, IsAGridWithNeighboursInOneTensorGroup) {
  run_threads(6, [](const Communicator& world) {
    const Mesh mesh = Mesh::create(world, 3, 2);
    EXPECT_EQ(mesh.data.size(), 3);
    EXPECT_EQ(mesh.tensor.size(), 2);
    EXPECT_EQ(mesh.data.rank(), world.rank() / 2);
    EXPECT_EQ(mesh.tensor.rank(), world.rank() % 2);
    EXPECT_EQ(mesh.along(Axis::data).name(), "dp");
    EXPECT_EQ(mesh.along(Axis::tensor).name(), "tp");
  });
}

TEST(Mesh, NamesSizesThatDoNotMakeTheJob) {
  run_threads(4, [](const Communicator& world) {
    for (const auto& [data, tensor] : {std::pair{2, 3}, {4, 0}, {-2, -2}, {3, 1}}) {
      try {
        Mesh::create(world, data, tensor);
        ADD_FAILURE() << data << "x" << tensor;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
        EXPECT_THAT(error.what(), testing::HasSubstr(std::to_string(tensor)));
      }
    }
    EXPECT_EQ(Mesh::create(world, 2, 2).data.size(), 2) << "the communicator is unharmed";
  });
}

// Squares of 1: the norm counts the elements of the whole model, each once.
TEST(GradientNorm, CountsSlicesAllAndReplicasOnce) {
  for (const int tensor_size : {1, 2, 3, 4}) {
    run_threads(2 * tensor_size, [&](const Communicator& world) {
      const Mesh mesh = Mesh::create(world, 2, tensor_size);
      Parameters parameters;
      const Share share = share_of(10, tensor_size, mesh.tensor.rank());
      parameters.add({.name = "divided",
                      .global_shape = {10, 4},
                      .first = {share.first, 0},
                      .extents = {share.count, 4},
                      .replicated_over = {Axis::data},
                      .initial = {}});
      parameters.add({.name = "replicated",
                      .global_shape = {9},
                      .first = {0},
                      .extents = {9},
                      .replicated_over = {Axis::data, Axis::tensor},
                      .initial = {}});
      parameters.allocate(DType::f64);
      for (const auto& parameter : parameters.all()) {
        for (std::int64_t i = 0; i < parameter->gradient.size(); ++i) parameter->gradient.set(i, 1);
      }
      EXPECT_EQ(gradient_norm(parameters, mesh), 7) << tensor_size;  // sqrt(40 + 9)
    });
  }
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

// Two steps by hand: m and v, their corrections, and decay of the weight itself.
TEST(AdamWOptimizer, StepsAsThePaperSays) {
  Parameters parameters;
  const Parameter& weight =
      parameters.add({.name = "w", .global_shape = {2}, .first = {0}, .extents = {2}, .initial = {2, 0}});
  const Parameter& bias =
      parameters.add({.name = "b", .global_shape = {1}, .first = {0}, .extents = {1}, .initial = {2, 0}, .decays = false});
  parameters.allocate(DType::f64);
  parameters.initialise(1);
  AdamWOptimizer optimizer(parameters, {.beta1 = 0.5, .beta2 = 0.75, .epsilon = 0, .weight_decay = 0.1});
  weight.gradient.set(0, 4);
  weight.gradient.set(1, -8);
  bias.gradient.set(0, 4);
  optimizer.step(0.01, 0.5);
  // After one step the corrected m / sqrt(v) is the gradient's sign.
  EXPECT_DOUBLE_EQ(weight.value.at(0), 2 * (1 - 0.001) - 0.01);
  EXPECT_DOUBLE_EQ(weight.value.at(1), 2 * (1 - 0.001) + 0.01);
  EXPECT_DOUBLE_EQ(bias.value.at(0), 2 - 0.01);
  EXPECT_DOUBLE_EQ(optimizer.states()[1].m.at(0), 1);  // half of the scaled gradient, 2
  EXPECT_DOUBLE_EQ(optimizer.states()[1].v.at(0), 1);  // a quarter of its square
  bias.gradient.set(0, 0);
  optimizer.step(0.01, 1);
  EXPECT_DOUBLE_EQ(bias.value.at(0), 1.99 - 0.01 * (0.5 / 0.75) / std::sqrt(0.75 / 0.4375));
  EXPECT_EQ(optimizer.steps(), 2);
}

}  // namespace
}  // namespace stretto
