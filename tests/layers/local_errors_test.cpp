// Training by 1-bit Adam, by DeMo and with PowerSGD that is saved and goes on, with what exchanges have yet to add.
#include "layers/optimizer/local_errors.hpp"

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/log.hpp"
#include "layers/optimizer/local_vectors.hpp"
#include "layers/optimizer/matrices/powersgd.hpp"
#include "own_gradients.hpp"
#include "saved_checkpoint.hpp"
#include "stretto/layers/checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

// The warnings while it lives.
class Warnings {
 public:
  Warnings() : sink_(std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)) { log().sinks().push_back(sink_); }
  ~Warnings() { log().sinks().pop_back(); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  spdlog::sink_ptr sink_;
};

// What the errors hold, over all ranks, by element: ranks' own and those of the sums.
NumbersByElement errors_of(OwnGradientTraining& training, const Communicator& world) {
  NumbersByElement errors;
  const ShardedParameters& sharded = training.sharded();
  for (const LocalGradients& vector : sharded.local_gradients()) {
    const Tensor sum = Tensor::zeros({vector.vector.size()}, DType::f32);
    const std::int64_t size = vector.vector.size(), ranks = vector.group.size(), rank = vector.group.rank();
    const std::int64_t own = size / ranks * rank + std::min(rank, size % ranks);
    for (const ErrorFeedback::Entry& entry : sharded.errors().entries()) {
      if (entry.tensor != unsent_momentum(vector) && entry.tensor != PowerSGD::error_name(vector)) continue;
      for (std::int64_t i = 0; i < entry.values.size(); ++i) {
        const std::int64_t at = i + (entry.hop == Hop::result ? own : 0);
        sum.set(at, sum.at(at) + entry.values.at(i));
      }
    }
    world.all_reduce(sum, ReduceOp::sum, Stream::inline_()).wait();
    for (const LocalGradients::Piece& piece : vector.pieces) {
      const std::string& name = sharded.parameters().all()[piece.parameter]->name;
      for (std::int64_t i = 0; i < piece.count; ++i) errors[fmt::format("{}[{}]", name, i)] = sum.at(piece.first + i);
    }
  }
  return errors;
}

struct RunOfSteps {
  NumbersByElement errors, values;
  std::string warnings;
};

// Saves after `saved` of 8 steps into the directory, or goes on from there.
RunOfSteps run_of(const OwnGradientLayout& layout, const std::string& directory, bool resumes, int saved = 5) {
  RunOfSteps run;
  const Warnings warnings;
  run_threads(static_cast<int>(layout.mesh.ranks()), [&](const Communicator& world) {
    OwnGradientTraining training(world, layout, normal_gradient, resumes ? 99 : 3);
    if (resumes) {
      const LoadedCheckpoint loaded =
          load_checkpoint(training.sharded(), training.optimizer(), find_checkpoint(directory), true);
      training.optimizer().restore(loaded.optimizer_steps);
    } else {
      training.steps(1, saved);
      save_checkpoint(training.sharded(), training.optimizer(), directory, saved);
    }
    const NumbersByElement errors = errors_of(training, world);
    training.steps(saved + 1, 8);
    if (world.rank() == 0) {
      run.errors = errors;
      run.values = training.values();
    }
  });
  run.warnings = warnings.text();
  return run;
}

OwnGradientLayout with_powersgd(int ranks, ZeroStage stage = ZeroStage::optimizer, std::int64_t start = 3) {
  return {
      .mesh = {{Axis::data, ranks}}, .stage = stage, .optimizer = AdamW::Options{}, .powersgd = {.rank = 2, .start = start}};
}

OwnGradientLayout with_demo(int ranks, ZeroStage stage = ZeroStage::optimizer) {
  return {.mesh = {{Axis::data, ranks}},
          .stage = stage,
          .optimizer = DeMo::Options{.compression_chunk = 8, .compression_topk = 5}};
}

// The control: without the errors, the next steps differ.
TEST(LocalErrors, GoOnBitForBitInTheSameLayout) {
  for (const ZeroStage stage : {ZeroStage::none, ZeroStage::optimizer, ZeroStage::gradients}) {
    for (const OwnGradientLayout& layout :
         {OwnGradientLayout{{{Axis::data, 3}}, stage}, with_powersgd(3, stage), with_demo(3, stage), with_demo(1, stage)}) {
      for (const int saved : {2, 3, 5}) {  // before the freeze or the start, at it, and behind
        const TemporaryDirectory directory;
        const RunOfSteps whole = run_of(layout, directory.path(), false, saved);
        const RunOfSteps rest = run_of(layout, directory.path(), true, saved);
        EXPECT_EQ(rest.values, whole.values) << saved;
        EXPECT_EQ(rest.errors, whole.errors);
        EXPECT_EQ(rest.warnings, "");
      }
    }
  }
}

void expect_sums_to_stay(const OwnGradientLayout& four, const std::vector<OwnGradientLayout>& others) {
  const TemporaryDirectory directory;
  const RunOfSteps whole = run_of(four, directory.path(), false);
  double largest = 0;
  for (const auto& [element, error] : whole.errors) largest = std::max(largest, std::abs(error));
  EXPECT_GT(largest, 1e-3) << "the control: there is something to lose";
  for (const OwnGradientLayout& other : others) {
    const RunOfSteps rest = run_of(other, directory.path(), true);
    EXPECT_EQ(rest.warnings, "");
    ASSERT_EQ(rest.errors.size(), whole.errors.size());
    for (const auto& [element, error] : whole.errors) EXPECT_NEAR(rest.errors.at(element), error, 1e-6) << element;
  }
}

TEST(LocalErrors, KeepTheirSumInAnotherLayout) {
  expect_sums_to_stay({{{Axis::data, 4}}}, {{{{Axis::data, 3}}}, {{{Axis::data, 2}}, ZeroStage::none}});
  expect_sums_to_stay(with_powersgd(4), {with_powersgd(3), with_powersgd(2, ZeroStage::none)});
  expect_sums_to_stay(with_demo(4), {with_demo(3), with_demo(2, ZeroStage::none), with_demo(1)});
  expect_sums_to_stay(with_demo(1), {with_demo(3)});
}

// A rank alone has nothing to add later, and says so; so does an exchange without compression.
TEST(LocalErrors, AreNotLostSilently) {
  const OwnGradientLayout two{{{Axis::data, 2}}};
  const TemporaryDirectory directory;
  run_of(two, directory.path(), false);
  OwnGradientLayout plain = two;
  plain.optimizer = OneBitAdam::Options{.freeze_step = 3, .format = QuantizedFormat::none};
  for (const OwnGradientLayout& other : {OwnGradientLayout{}, plain}) {
    EXPECT_THAT(run_of(other, directory.path(), true).warnings, testing::HasSubstr("are lost"));
  }
  const TemporaryDirectory of_plain;
  run_of(plain, of_plain.path(), false);
  EXPECT_THAT(run_of(two, of_plain.path(), true).warnings, testing::HasSubstr("are lost"));
}

// Checkpoints of former versions described the vectors under another name. The control: without a description.
TEST(LocalErrors, OfFormerVersionsAreRead) {
  const TemporaryDirectory directory;
  const RunOfSteps whole = run_of(with_powersgd(2), directory.path(), false);
  const auto rename = [&](const std::string& from, const std::string& to) {
    for (const std::string file : {"step_00000005/rank_00000.safetensors", "step_00000005/rank_00001.safetensors"}) {
      std::string bytes = content_of(directory / file);
      const std::size_t at = bytes.find(from);
      const std::size_t end = bytes.find("}}", bytes.find("data_offsets")) + 2;  // of the header, which is padded there
      ASSERT_LT(at, end);
      bytes.insert(end, from.size() - to.size(), ' ');
      bytes.replace(at, from.size(), to);
      directory.write(file, bytes);
    }
    auto index = nlohmann::json::parse(content_of(directory / "step_00000005/index.json"));
    for (auto& shard : index["shards"]) shard.erase("xxh3");
    directory.write("step_00000005/index.json", index.dump());
  };
  rename("\"local_vectors\"", "\"momentum\"");
  const RunOfSteps rest = run_of(with_powersgd(3), directory.path(), true);
  EXPECT_EQ(rest.warnings, "");
  for (const auto& [element, error] : whole.errors) EXPECT_NEAR(rest.errors.at(element), error, 1e-6) << element;
  rename("\"momentum\"", "\"none\"");
  EXPECT_THAT(run_of(with_powersgd(3), directory.path(), true).errors, testing::Each(testing::Pair(testing::_, 0)));
}

// Files of former versions have these names.
TEST(LocalErrors, KeepTheirNamesInFiles) {
  for (const OwnGradientLayout& layout : {OwnGradientLayout{{{Axis::data, 2}}}, with_demo(2)}) {
    const TemporaryDirectory directory;
    run_of(layout, directory.path(), false);
    const std::string shard = content_of(directory / "step_00000005/rank_00000.safetensors");
    EXPECT_NE(shard.find("\"error.contribution.momentum.dp\""), std::string::npos);
  }
}

// By a training without PowerSGD, one that begins with it later, or one rank. Training that had none has lost nothing.
TEST(LocalErrors, OfPowerSGDAreNotLostSilently) {
  const TemporaryDirectory directory, of_plain;
  run_of(with_powersgd(2), directory.path(), false);
  OwnGradientLayout plain = with_powersgd(2);
  plain.powersgd = {};
  for (const OwnGradientLayout& other : {plain, with_powersgd(2, ZeroStage::optimizer, 100), with_powersgd(1)}) {
    EXPECT_THAT(run_of(other, directory.path(), true).warnings,
                testing::HasSubstr("errors that PowerSGD has yet to add to its sums are lost"));
  }
  run_of(plain, of_plain.path(), false);
  for (const int ranks : {2, 3}) EXPECT_EQ(run_of(with_powersgd(ranks), of_plain.path(), true).warnings, "");
}

// The factors of a checkpoint with another rank do not fit, but the errors do.
TEST(LocalErrors, StayWithAnotherRankOfPowerSGD) {
  const TemporaryDirectory directory;
  const RunOfSteps two = run_of(with_powersgd(3), directory.path(), false);
  OwnGradientLayout three = with_powersgd(3);
  three.powersgd.rank = 3;
  const RunOfSteps rest = run_of(three, directory.path(), true);
  EXPECT_EQ(rest.errors, two.errors);
  EXPECT_EQ(rest.warnings, "");
  EXPECT_NE(rest.values, two.values);
}

}  // namespace
}  // namespace stretto
