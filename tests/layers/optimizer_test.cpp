// The mesh, the norm of sharded gradients, the optimizer and the learning rate.
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

// All gradients are 1, so the squared norm is the number of elements of the whole model, each counted once.
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

// The norm does not depend on the ranges, as long as they hold every element of a data-parallel group once.
TEST(GradientNorm, IsTheSameFromTheSharesOfAllRanks) {
  for (const int tensor_size : {1, 2}) {
    run_threads(2 * tensor_size, [&](const Communicator& world) {
      const Mesh mesh = Mesh::create(world, 2, tensor_size);
      Parameters parameters;
      parameters.add({.name = "divided",
                      .global_shape = {10 * tensor_size, 4},
                      .first = {10 * mesh.tensor.rank(), 0},
                      .extents = {10, 4},
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
        for (std::int64_t i = 0; i < parameter->gradient.size(); ++i) parameter->gradient.set(i, static_cast<double>(i));
      }
      const bool first = mesh.data.rank() == 0;
      const std::vector<ElementRange> own =
          first ? std::vector<ElementRange>{{0, 0, 11}, {1, 0, 9}} : std::vector<ElementRange>{{0, 11, 20}, {0, 31, 9}};
      const double whole = gradient_norm(parameters, mesh);
      EXPECT_DOUBLE_EQ(gradient_norm(parameters, mesh, own), whole);
      EXPECT_NE(gradient_norm(parameters, mesh, {{0, 0, 40}, {1, 0, 9}}), whole) << "the control: each counts twice";
    });
  }
}

// Two steps computed by hand: m and v, their bias corrections, and weight decay.
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

// Any division of the elements gives the same bits, also parts that begin inside a SIMD vector. The control leaves out one
// element.
TEST(AdamWOptimizer, UpdatesInPartsLikeTheWhole) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto trained = [&](const std::vector<std::vector<ElementRange>>& parts) {
      Parameters parameters;
      parameters.add({.name = "w", .global_shape = {101}, .first = {0}, .extents = {101}, .initial = {2, 1}});
      parameters.add({.name = "b", .global_shape = {7}, .first = {0}, .extents = {7}, .initial = {2, 1}, .decays = false});
      parameters.allocate(dtype);
      parameters.initialise(1);
      AdamWOptimizer optimizer(parameters, {});
      for (int step = 0; step < 3; ++step) {
        for (const auto& parameter : parameters.all()) {
          for (std::int64_t i = 0; i < parameter->gradient.size(); ++i) {
            parameter->gradient.set(i, random_normal(3, parameter->name, static_cast<std::uint64_t>(i + step)));
          }
        }
        if (parts.empty()) {
          optimizer.step(1e-2, 0.7);
        } else {
          optimizer.begin_step(1e-2, 0.7);
          for (const auto& part : parts) optimizer.update(part);
        }
      }
      std::vector<double> numbers;
      for (std::size_t p = 0; p < 2; ++p) {
        for (const Tensor& tensor : {parameters.all()[p]->value, optimizer.states()[p].m, optimizer.states()[p].v}) {
          for (std::int64_t i = 0; i < tensor.size(); ++i) numbers.push_back(tensor.at(i));
        }
      }
      return numbers;
    };
    const std::vector<double> whole = trained({});
    EXPECT_EQ(trained({{{1, 3, 4}, {0, 13, 59}}, {{0, 0, 13}, {1, 0, 3}}, {{0, 72, 29}}}), whole);
    EXPECT_NE(trained({{{1, 3, 4}, {0, 13, 59}}, {{0, 0, 13}, {1, 0, 3}}, {{0, 72, 28}}}), whole);
  }
}

}  // namespace
}  // namespace stretto
