// The model and the optimizer against PyTorch, whose results tests/reference/make_gpt2_reference.py wrote to a file.
#include <gmock/gmock.h>

#include <cstdlib>

#include "../device/test_device.hpp"
#include "layers/checkpoint/files/safetensors.hpp"
#include "parity.hpp"
#include "stretto/device.hpp"

namespace parity {
namespace {

std::vector<double> values_of(const SafetensorsReader& file, const std::string& name) {
  const auto view = file.tensor(name);
  std::vector<double> result;
  for (std::int64_t i = 0; i < view.elements; ++i) result.push_back(view.at(i));
  return result;
}

class Reference : public testing::TestWithParam<std::tuple<int, DType>> {
 protected:
  TrainingOptions options() const {
    TrainingOptions result;
    result.model = {.layers = 2, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 65};
    result.sharding.dtype = std::get<DType>(GetParam());
    result.micro_batch = result.global_batch = 4;
    result.clip_norm = 0;
    result.optimizer = AdamW::Options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
    return result;
  }

  // Replaces the random weights by the file's. Its [96, 32] and our [3, 32, 32] are the same numbers in the same order.
  void take_weights(Trainer& trainer) const {
    for (const auto& parameter : trainer.parameters().all()) {
      const std::vector<double> whole = values_of(file, parameter->name);
      for_each_run(parameter->global_shape, parameter->first, parameter->extents,
                   [&](std::int64_t here, std::int64_t there, std::int64_t count) {
                     for (std::int64_t i = 0; i < count; ++i) {
                       parameter->value.set(here + i, whole[static_cast<std::size_t>(there + i)]);
                     }
                   });
    }
    trainer.optimizer().adopt_values();
  }

  FillSlot batch() const {
    return [inputs = values_of(file, "inputs"), targets = values_of(file, "targets")](
               std::int64_t slot, std::int32_t* tokens, std::int32_t* next) {
      for (std::int64_t i = 0; i < 16; ++i) {
        tokens[i] = static_cast<std::int32_t>(inputs[static_cast<std::size_t>(slot * 16 + i)]);
        next[i] = static_cast<std::int32_t>(targets[static_cast<std::size_t>(slot * 16 + i)]);
      }
    };
  }

  std::string logits_divergence(Comparer& comparer, Trainer& trainer) const {
    std::vector<std::int32_t> tokens;
    for (const double token : values_of(file, "inputs")) tokens.push_back(static_cast<std::int32_t>(token));
    const Tensor logits = trainer.logits(Batch::of(tokens, {}, 16));
    const Piece expected{{64, 65}, {0, 0}, {64, 65}, values_of(file, "logits")};
    const Shape first{0, trainer.model().first_column()};
    Piece actual{{64, 65}, first, logits.shape(), {}};
    for (std::int64_t i = 0; i < logits.size(); ++i) actual.values.push_back(logits.at(i));
    return comparer.pieces({{"logits", expected}}, {{"logits", actual}}, "");
  }

  std::string gradients_divergence(Comparer& comparer, Trainer& trainer) const {
    std::string first;
    for (const auto& parameter : trainer.parameters().all()) {
      const Piece actual = piece_of(*parameter, parameter->gradient);
      const Piece expected{actual.global_shape, Shape(actual.first.size(), 0), actual.global_shape,
                           values_of(file, "gradient." + parameter->name)};
      first += comparer.pieces({{parameter->name, expected}}, {{parameter->name, actual}}, "the gradient of");
    }
    return first;
  }

  bool is_f64() const { return std::get<DType>(GetParam()) == DType::f64; }
  // In f64, only the file's rounding to F32 remains.
  double tolerance() const { return is_f64() ? 1e-6 : 1e-5; }
  double loss_tolerance() const { return is_f64() ? 1e-12 : 1e-5; }  // adamw_losses are F64
  int tensor_size() const { return std::get<int>(GetParam()); }

  // The tests may run on another machine than the one that built them.
  const char* const elsewhere = std::getenv("GPT2_REFERENCE");
  const SafetensorsReader file{elsewhere != nullptr ? elsewhere : GPT2_REFERENCE};
};

TEST_P(Reference, AgreesOnLogitsLossGradientsAndTenSteps) {
  run_threads(tensor_size(), [&](const Communicator& world) {
    const OnDevice device(test_device());
    Trainer trainer(Mesh(world, {{Axis::tensor, tensor_size()}}), options());
    take_weights(trainer);
    Comparer comparer(tolerance());
    EXPECT_EQ(logits_divergence(comparer, trainer), "");
    const double loss = trainer.compute_gradients(batch()).loss;
    EXPECT_EQ(comparer.numbers(values_of(file, "loss"), {loss}, "loss"), "");
    EXPECT_EQ(gradients_divergence(comparer, trainer), "");
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) losses.push_back(trainer.step(batch(), 1e-3).loss);
    losses.push_back(trainer.compute_gradients(batch()).loss);
    Comparer losses_comparer(loss_tolerance());
    EXPECT_EQ(losses_comparer.numbers(values_of(file, "adamw_losses"), losses, "loss"), "");
    if (world.rank() == 0) {
      RecordProperty("worst", fmt::format("{:.2g}", comparer.worst()));
      RecordProperty("worst_of_ten_losses", fmt::format("{:.2g}", losses_comparer.worst()));
    }
  });
}

// The control.
TEST_P(Reference, DisagreesWhenTwoWeightsAreSwapped) {
  run_threads(tensor_size(), [&](const Communicator& world) {
    const OnDevice device(test_device());
    Trainer trainer(Mesh(world, {{Axis::tensor, tensor_size()}}), options());
    take_weights(trainer);
    const Tensor& embedding = trainer.parameters().all().front()->value;
    const double before = embedding.at(0);
    embedding.set(0, embedding.at(1));
    embedding.set(1, before);
    Comparer comparer(tolerance());
    EXPECT_NE(logits_divergence(comparer, trainer), "");
    const double loss = trainer.compute_gradients(batch()).loss;
    EXPECT_NE(gradients_divergence(comparer, trainer), "");
    EXPECT_NE(Comparer(loss_tolerance()).numbers({values_of(file, "adamw_losses")[0]}, {loss}, "loss"), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, Reference,
                         testing::Combine(testing::Values(1, 2), testing::Values(DType::f32, DType::f64)),
                         [](const auto& cell) {
                           return fmt::format("tp{}_{}", std::get<0>(cell.param), name(std::get<1>(cell.param)));
                         });

}  // namespace
}  // namespace parity
