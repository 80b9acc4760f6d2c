// Gradients that are one step late, with state in files: updates run behind the next step's computation.
#include <gmock/gmock.h>

#include "delayed.hpp"
#include "support/temporary_directory.hpp"
#include "support/tiers.hpp"

namespace parity::delay {
namespace {

class DelayInFiles : public testing::TestWithParam<Case> {};

TEST_P(DelayInFiles, HasTheBitsOfTheReferenceLoop) {
  const Layout layout = GetParam().layout;
  const TemporaryDirectory directory;
  TrainingOptions options = options_of(GetParam());
  options.loss_scale = {.initial = 0x1p22, .window = 2};  // in f16 the first gradients overflow
  const Trainings expected = reference(layout, options, 1);
  const auto in_file = [&](double ratio) { return ShardedParameters::Options::InFile{directory.path(), ratio}; };
  for (const double ratio : {0.0, 0.5}) {
    options.sharding.offload.optimizer = in_file(ratio);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", ratio " << ratio;
  }
  if (options.sharding.zero == ZeroStage::values) {
    options.sharding.offload.values = in_file(0);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", values in a file";
  }
  if (options.sharding.zero >= ZeroStage::gradients) {
    options.sharding.offload.gradients = in_file(0);
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", gradients in a file";
    options.sharding.offload.optimizer = {};
    EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << ", gradients in a file, state in memory";
    options.sharding.offload.optimizer = in_file(0);
  }
  options.sharding.overlap = false;
  EXPECT_TRUE(delayed(layout, options) == expected) << GetParam().text() << " without overlap";
}

std::vector<Case> cases_in_files() {
  using enum ZeroStage;
  return {{{1}, none, "adamw"},
          {{1}, optimizer, "muon", DType::bf16},
          {{2}, none, "sgd", DType::bf16},
          {{2}, optimizer, "momentum"},
          {{2}, optimizer, "adamw", DType::f64},
          {{2}, gradients, "muon"},
          {{2}, values, "muon", DType::bf16},
          {{2}, values, "sgd"},
          {{4}, gradients, "adamw", DType::f16},
          {{4}, values, "adamw"},
          {{2, 2}, optimizer, "muon"},
          {{2, 1, 2}, gradients, "momentum", DType::f32, "interleaved"},
          {{2, 2, 2}, values, "adamw", DType::bf16}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, DelayInFiles, testing::ValuesIn(of_today(cases_in_files(), 4)), name_of);

}  // namespace
}  // namespace parity::delay
