// A training that any layout has saved goes on in any other as if it had never stopped.
#include <numeric>

#include "parity.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"

namespace parity {
namespace {

constexpr std::int64_t saved_step = 2, all_steps = 4;

struct ResumeLayout {
  Layout layout;
  ZeroStage zero = ZeroStage::none;
  const char* schedule = "1f1b";
  bool own_rows = false;
  Recompute recompute = Recompute::none;
  bool quantized = false;  // sums, with random numbers and errors that are fed back

  std::string text() const {
    return fmt::format("dp {} tp {} pp {} cp {} ulysses {} zero {} {}{}", layout.data, layout.tensor, layout.pipeline,
                       layout.ring, layout.ulysses, static_cast<int>(zero), schedule, own_rows ? " sp" : "");
  }
};

const std::vector<ResumeLayout>& resume_layouts() {
  static const std::vector<ResumeLayout> layouts = {
      {},
      {{.data = 4}},
      {{.data = 3}, ZeroStage::optimizer},
      {{.data = 2, .tensor = 2}, ZeroStage::gradients},
      {{.data = 4}, ZeroStage::values},
      {{.tensor = 4}, ZeroStage::none, "1f1b", true},
      {{.pipeline = 2}, ZeroStage::none, "gpipe"},
      {{.data = 2, .pipeline = 2}, ZeroStage::values, "zb-v"},
      {{.tensor = 2, .pipeline = 2}, ZeroStage::none, "interleaved", true, Recompute::full},
      {{.data = 2, .ring = 2}, ZeroStage::optimizer},
      {{.tensor = 2, .ulysses = 2}, ZeroStage::values, "1f1b", true},
      {{.pipeline = 2, .ring = 2}, ZeroStage::gradients, "zb-h1"},
      {{.tensor = 8}, ZeroStage::none, "1f1b", true},  // two ranks to a head of keys and values
  };
  return layouts;
}

// Every layout divides this model and its batch.
TrainingOptions resume_options(const ResumeLayout& from, DType dtype) {
  TrainingOptions options = tiny({}, dtype);
  options.model.layers = 4;
  options.model.kv_heads = 4;
  options.global_batch = 12;
  options.divides_rows = from.own_rows;
  options.stages.schedule_name = from.schedule;
  options.sharding.zero = from.zero;
  options.recompute.level = from.recompute;
  if (from.quantized) {
    options.sharding.qgz = QuantizedFormat::int8;
    options.sharding.qgz_rounding = Rounding::stochastic;
    options.sharding.qgz_error_feedback = true;
  }
  return options;
}

// Losses of the steps that a job makes. It first goes on from the checkpoint in `resume`, if given, and saves into `save`
// after saved_step.
std::vector<double> losses_of(const ResumeLayout& where, DType dtype, const std::string& resume, const std::string& save) {
  std::vector<double> losses;
  run_threads(where.layout.ranks(), [&](const Communicator& world) {
    Trainer trainer(Mesh(world, where.layout.mesh()), resume_options(where, dtype));
    std::int64_t step = 0;
    if (!resume.empty()) {
      const LoadedCheckpoint loaded = load_checkpoint(trainer.sharded(), trainer.optimizer(), find_checkpoint(resume), true);
      trainer.optimizer().restore(loaded.optimizer_steps);
      trainer.loss_scale().restore(loaded.notes);
      step = loaded.step;
    }
    for (; step < all_steps; ++step) {
      if (step == saved_step && !save.empty()) {
        save_checkpoint(trainer.sharded(), trainer.optimizer(), save, step, trainer.loss_scale().notes());
      }
      const double loss = trainer.step(text_of_step(trainer.options(), step), 3e-3).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

double largest_difference(const std::vector<double>& rest, const std::vector<double>& whole) {
  EXPECT_EQ(rest.size(), static_cast<std::size_t>(all_steps - saved_step));
  double largest = 0;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    largest = std::max(largest, std::abs(rest[i] / whole[static_cast<std::size_t>(saved_step) + i] - 1));
  }
  return largest;
}

// 33 pairs of a layout that saves and one that goes on: every layout does both at least twice.
TEST(Resume, GoesOnInAnyLayout) {
  const std::vector<ResumeLayout>& layouts = resume_layouts();
  const std::vector<double> whole = losses_of(layouts.front(), DType::f64, "", "");
  const std::size_t distances[] = {1, 5, 7};
  std::vector<std::size_t> numbers(layouts.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  for (const std::size_t from : of_today(numbers, 3)) {
    const TemporaryDirectory directory;
    const std::vector<double> its = losses_of(layouts[from], DType::f64, "", directory.path());
    for (std::size_t i = 0; i < (from % 2 == 0 ? 3 : 2); ++i) {
      const ResumeLayout& to = layouts[(from + distances[i]) % layouts.size()];
      const std::vector<double> rest = losses_of(to, DType::f64, directory.path(), "");
      EXPECT_LT(largest_difference(rest, its), parity_tolerance) << layouts[from].text() << " to " << to.text();
      EXPECT_LT(largest_difference(rest, whole), parity_tolerance) << layouts[from].text() << " to " << to.text();
    }
  }
}

TEST(Resume, ControlFailsWithAnotherTraining) {
  const TemporaryDirectory directory;
  ResumeLayout other;
  other.layout.data = 2;
  losses_of(other, DType::f32, "", directory.path());  // rounded to other values
  const std::vector<double> rest = losses_of({}, DType::f64, directory.path(), "");
  EXPECT_GT(largest_difference(rest, losses_of({}, DType::f64, "", "")), parity_tolerance);
}

class ResumeTypes : public testing::TestWithParam<DType> {};

TEST_P(ResumeTypes, SameLayoutHasTheSameBits) {
  std::vector<ResumeLayout> layouts = resume_layouts();
  if (GetParam() != DType::f64) {
    ResumeLayout quantized{{.data = 4}, ZeroStage::values};
    quantized.quantized = true;
    layouts.push_back(quantized);
  }
  for (const ResumeLayout& layout : of_today(layouts, 3)) {
    const TemporaryDirectory directory;
    const std::vector<double> whole = losses_of(layout, GetParam(), "", directory.path());
    const std::vector<double> rest = losses_of(layout, GetParam(), directory.path(), "");
    EXPECT_EQ(largest_difference(rest, whole), equal_bits) << layout.text();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ResumeTypes, testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& cell) { return std::string(name(cell.param)); });

}  // namespace
}  // namespace parity
