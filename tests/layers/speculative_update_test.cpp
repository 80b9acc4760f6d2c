// Updates that begin before the norm is known have the bits of the plain order, whatever is taken back.
#include "stretto/layers/speculative_update.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "stretto/layers/optimizers.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

constexpr int steps = 30;
constexpr double largest_norm = 20, loss_scale = 8;

struct Cell {
  int ranks = 1;
  ZeroStage zero = ZeroStage::none;
  OptimizerOptions optimizer = AdamW::Options();
  DType dtype = DType::f32;
  double ratio = 0;  // of the state that stays in memory
};

enum class Order : std::uint8_t { plain, speculates, never_clips };

struct Trained {
  std::vector<double> values;
  std::int64_t taken_back = 0;
};

// Gradients are clipped in every third step, and overflow in every fifth.
double size_of_step(int step) {
  if (step % 5 == 4) return std::numeric_limits<double>::infinity();
  return step % 3 == 2 ? 100 * loss_scale : loss_scale;
}

bool is_plain(double norm) { return std::isfinite(norm) && norm <= largest_norm; }

Trained trained(const Cell& cell, Order order, const std::string& directory) {
  std::vector<Trained> results(static_cast<std::size_t>(cell.ranks));
  run_threads(cell.ranks, [&](const Communicator& world) {
    const Mesh mesh(world, {{Axis::data, cell.ranks}});
    Parameters parameters;
    add_parameters(parameters, mesh, 512);
    ShardedParameters::Options options{.zero = cell.zero, .dtype = cell.dtype, .unit_bytes = 4096};
    if (order != Order::plain) options.offload = {.optimizer = {directory, cell.ratio}, .speculates = true};
    ShardedParameters sharded(parameters, mesh, options);
    sharded.initialise(1);
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(sharded, cell.optimizer);
    std::unique_ptr<SpeculativeUpdate> update;
    if (order != Order::plain) update = std::make_unique<SpeculativeUpdate>(sharded, *optimizer);
    for (int step = 0; step < steps; ++step) {
      const double lr = 1e-2 / (1 + step);
      const auto gradient = [&](const std::string& name, std::int64_t i) {
        return size_of_step(step) * random_normal(3, name, static_cast<std::uint64_t>(i + step)) / 8;
      };
      if (update) {
        sum_gradients(sharded, parameters, gradient, [&] { update->begin(lr, 1 / loss_scale); });
      } else {
        sum_gradients(sharded, parameters, gradient);
      }
      const double norm = gradient_norm(sharded) / loss_scale;
      if (update && (is_plain(norm) || (order == Order::never_clips && std::isfinite(norm)))) {
        update->keep();
        continue;
      }
      if (update) update->take_back();
      if (std::isfinite(norm)) optimizer->step(lr, std::min(1.0, largest_norm / norm) / loss_scale);
    }
    Trained& its = results[static_cast<std::size_t>(world.rank())];
    for (const Tensor& value : sharded.whole_values()) {
      for (std::int64_t i = 0; i < value.size(); ++i) its.values.push_back(value.at(i));
    }
    its.values.push_back(static_cast<double>(optimizer->steps()));
    if (update) its.taken_back = update->taken_back();
  });
  for (const Trained& its : results) EXPECT_EQ(its.values, results.front().values);
  return results.front();
}

class Speculation : public testing::TestWithParam<Cell> {};

TEST_P(Speculation, HasTheBitsOfThePlainOrder) {
  const TemporaryDirectory directory;
  const Trained expected = trained(GetParam(), Order::plain, {});
  const Trained found = trained(GetParam(), Order::speculates, directory.path());
  EXPECT_EQ(found.values, expected.values);
  std::int64_t not_plain = 0;
  for (int step = 0; step < steps; ++step) not_plain += step % 5 == 4 || step % 3 == 2 ? 1 : 0;
  EXPECT_EQ(found.taken_back, not_plain);
  EXPECT_NE(trained(GetParam(), Order::never_clips, directory.path()).values, expected.values) << "the control";
}

INSTANTIATE_TEST_SUITE_P(Cells, Speculation,
                         testing::Values(Cell{}, Cell{1, ZeroStage::none, SGD::Options{.momentum = 0.9}, DType::bf16},
                                         Cell{2, ZeroStage::none},
                                         Cell{2, ZeroStage::optimizer, AdamW::Options(), DType::bf16},
                                         Cell{2, ZeroStage::gradients, SGD::Options{.momentum = 0.9}},
                                         Cell{2, ZeroStage::values, AdamW::Options(), DType::f64},
                                         Cell{4, ZeroStage::values, AdamW::Options(), DType::bf16},
                                         Cell{4, ZeroStage::gradients, AdamW::Options(), DType::f32, 0.5}));

TEST(SpeculationRefusals, NameTheOptimizer) {
  const TemporaryDirectory directory;
  run_threads(1, [&](const Communicator& world) {
    const Mesh mesh(world, {});
    Parameters parameters;
    add_parameters(parameters, mesh);
    ShardedParameters sharded(parameters, mesh, {.offload = {.optimizer = {directory.path()}, .speculates = true}});
    const std::unique_ptr<Optimizer> muon = make_optimizer(sharded, Muon::Options());
    expect_refusal([&] { SpeculativeUpdate(sharded, *muon); }, "Optimizer muon does not update before the norm is known");
    ShardedParameters without(parameters, mesh, {.offload = {.optimizer = {directory.path()}}});
    const std::unique_ptr<Optimizer> adamw = make_optimizer(without, AdamW::Options());
    EXPECT_THROW(SpeculativeUpdate(without, *adamw), Error);
    const std::unique_ptr<Optimizer> sgd = make_optimizer(sharded, SGD::Options{.momentum = 0});
    expect_refusal([&] { SpeculativeUpdate(sharded, *sgd); }, "Optimizer sgd without slots keeps no state");
    const std::unique_ptr<Optimizer> with_state = make_optimizer(sharded, AdamW::Options());
    SpeculativeUpdate update(sharded, *with_state);
    expect_refusal([&] { update.keep(); }, "none has begun");
    expect_refusal([&] { update.take_back(); }, "begin one first");
    EXPECT_EQ(update.taken_back(), 0);
  });
}

}  // namespace
}  // namespace stretto
