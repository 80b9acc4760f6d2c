// The trainer on a real GPU against the trainer on the host. The same program has the comparison with PyTorch from
// tests/parity/reference_test.cpp.
#include <gmock/gmock.h>

#include "parity/parity.hpp"
#include "stretto/device.hpp"

namespace parity {
namespace {

struct Case {
  Layout layout;
  DType dtype;
  double tolerance;
};

std::vector<Trace> train_on(Device device, const Layout& layout, const TrainingOptions& options) {
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    const OnDevice on(device);
    Trainer trainer(Mesh(world, {{Axis::tensor, layout.tensor}, {Axis::data, layout.data}}), options);
    EXPECT_EQ(trainer.parameters().all().front()->value.device(), device);
    traces[static_cast<std::size_t>(world.rank())] = advance(trainer, 0, trained_steps);
  });
  return traces;
}

class TrainingOnTheGpu : public testing::TestWithParam<Case> {};

TEST_P(TrainingOnTheGpu, AgreesWithTheHost) {
  const Layout layout = GetParam().layout;
  TrainingOptions options = tiny(layout, GetParam().dtype);
  // Some gradients, such as those of the keys' biases, are zero but for rounding. AdamW divides each by its own size, which
  // would make whole steps of rounding errors; this epsilon is larger than they are.
  options.optimizer = AdamW::Options{.epsilon = 1e-4};
  const std::vector<Trace> host = train_on(Device::cpu, layout, options);
  const std::vector<Trace> gpu = train_on(Device::cuda, layout, options);
  double worst = 0;
  for (std::size_t rank = 0; rank < host.size(); ++rank) {
    const Comparison comparison = compare(host[rank], gpu[rank], GetParam().tolerance);
    EXPECT_EQ(comparison.all(), "") << "rank " << rank;
    worst = std::max(worst, comparison.worst);
  }
  RecordProperty("worst_relative_difference", fmt::format("{:.2g}", worst));
}

// The control: another seed.
TEST_P(TrainingOnTheGpu, DisagreesWithAnotherModel) {
  const Layout layout = GetParam().layout;
  TrainingOptions options = tiny(layout, GetParam().dtype);
  options.optimizer = AdamW::Options{.epsilon = 1e-4};
  const std::vector<Trace> host = train_on(Device::cpu, layout, options);
  options.seed = 2;
  const Comparison comparison = compare(host[0], train_on(Device::cuda, layout, options)[0], GetParam().tolerance);
  EXPECT_NE(comparison.gradient, "");
  EXPECT_NE(comparison.parameter, "");
}

// The ranks share one GPU.
INSTANTIATE_TEST_SUITE_P(Layouts, TrainingOnTheGpu,
                         testing::Values(Case{{1, 1}, DType::f32, 1e-5}, Case{{1, 1}, DType::f64, parity_tolerance},
                                         Case{{2, 1}, DType::f32, 1e-5}, Case{{1, 2}, DType::f32, 1e-5},
                                         Case{{2, 2}, DType::f32, 1e-5}, Case{{2, 2}, DType::f64, parity_tolerance}),
                         [](const auto& cell) {
                           return fmt::format("{}x{}_{}", cell.param.layout.data, cell.param.layout.tensor,
                                              name(cell.param.dtype));
                         });

// A model as wide as GPT-2, with heads of 64 elements and an odd vocabulary, so that rows of logits are unaligned.
struct Gradients {
  StepResult step;
  Pieces pieces;
};
Gradients of_a_wide_model(Device device, DType dtype) {
  TrainingOptions options;
  options.model = {.layers = 2, .hidden = 768, .heads = 12, .sequence = 128, .vocabulary = 5003};
  options.sharding.dtype = dtype;
  options.micro_batch = options.global_batch = 2;
  Gradients result;
  run_threads(1, [&](const Communicator& world) {
    const OnDevice on(device);
    Trainer trainer(Mesh(world, {{Axis::tensor, 1}, {Axis::data, 1}}), options);
    result.step = trainer.compute_gradients(text_of_step(options, 0));
    for (const auto& parameter : trainer.parameters().all()) {
      result.pieces[parameter->name] = piece_of(*parameter, parameter->gradient);
    }
  });
  return result;
}

TEST(AWideModelOnTheGpu, HasTheHostsGradients) {
  const Gradients host = of_a_wide_model(Device::cpu, DType::f32);
  const Gradients gpu = of_a_wide_model(Device::cuda, DType::f32);
  Comparer comparer(1e-5);
  EXPECT_EQ(comparer.numbers({host.step.loss, host.step.gradient_norm}, {gpu.step.loss, gpu.step.gradient_norm}, "loss"),
            "");
  EXPECT_EQ(comparer.pieces(host.pieces, gpu.pieces, "the gradient of"), "");
  RecordProperty("worst_relative_difference", fmt::format("{:.2g}", comparer.worst()));
}

// With bf16 on the GPU's tensor cores, rounding differs from the host's f32, so the bounds are wider.
TEST(AWideModelOnTheGpu, LearnsInBf16AsTheHostDoes) {
  const Gradients exact = of_a_wide_model(Device::cpu, DType::f32);
  const Gradients gpu = of_a_wide_model(Device::cuda, DType::bf16);
  EXPECT_NEAR(gpu.step.loss, exact.step.loss, 2e-3 * exact.step.loss);
  EXPECT_NEAR(gpu.step.gradient_norm, exact.step.gradient_norm, 2e-2 * exact.step.gradient_norm);
  for (const auto& [name, piece] : exact.pieces) {
    double error = 0;
    double size = 0;
    const std::vector<double>& other = gpu.pieces.at(name).values;
    for (std::size_t i = 0; i < piece.values.size(); ++i) {
      error += (other[i] - piece.values[i]) * (other[i] - piece.values[i]);
      size += piece.values[i] * piece.values[i];
    }
    EXPECT_LE(std::sqrt(error), 0.05 * std::sqrt(size)) << "the gradient of " << name;
  }
}

}  // namespace
}  // namespace parity
