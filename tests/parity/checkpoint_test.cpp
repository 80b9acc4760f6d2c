// Training that is saved and continued: with equal bits on the same layout, within rounding on another. And the errors for
// damaged checkpoints.
#include "checkpoint.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <iterator>

#include "parity.hpp"
#include "safetensors.hpp"
#include "temporary_directory.hpp"

namespace parity {
namespace {

gpt::TrainerOptions model_for_four(DType dtype = DType::f64) {
  gpt::TrainerOptions options = tiny({4, 1}, dtype);  // heads and global batch divide by 4
  options.seed = 3;
  return options;
}

// The last three of six uninterrupted steps.
std::vector<Trace> uninterrupted(Layout layout, const gpt::TrainerOptions& options) {
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh(world, {.tensor = layout.tensor, .data = layout.data}), options);
    advance(trainer, 0, 3);
    traces[static_cast<std::size_t>(world.rank())] = advance(trainer, 3, 3);
  });
  return traces;
}

void train_and_save(Layout layout, const gpt::TrainerOptions& options, const TemporaryDirectory& directory) {
  run_threads(layout.ranks(), [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh(world, {.tensor = layout.tensor, .data = layout.data}), options);
    advance(trainer, 0, 3);
    gpt::save_checkpoint(trainer, directory.path(), 3);
  });
}

std::vector<Trace> load_and_continue(Layout layout, gpt::TrainerOptions options, const TemporaryDirectory& directory,
                                     bool with_optimizer = true) {
  options.seed = 99;  // no initial value of the fresh trainer may remain
  std::vector<Trace> traces(static_cast<std::size_t>(layout.ranks()));
  run_threads(layout.ranks(), [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh(world, {.tensor = layout.tensor, .data = layout.data}), options);
    const auto loaded = gpt::load_checkpoint(trainer, gpt::find_checkpoint(directory.path()), with_optimizer);
    EXPECT_EQ(loaded.step, 3);
    trainer.optimizer().restore(loaded.optimizer_steps);
    traces[static_cast<std::size_t>(world.rank())] = advance(trainer, 3, 3);
  });
  return traces;
}

class Checkpoint : public testing::TestWithParam<DType> {};

TEST_P(Checkpoint, ContinuesOnTheSameLayoutBitForBit) {
  for (const Layout layout : {Layout{2, 1}, {1, 2}}) {
    const TemporaryDirectory directory;
    const gpt::TrainerOptions options = model_for_four(GetParam());
    train_and_save(layout, options, directory);
    const std::vector<Trace> expected = uninterrupted(layout, options);
    const std::vector<Trace> actual = load_and_continue(layout, options, directory);
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      EXPECT_EQ(compare(expected[rank], actual[rank], equal_bits).all(), "") << layout.data << "x" << layout.tensor;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Checkpoint, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& cell) { return std::string(name(cell.param)); });

TEST(CheckpointOnAnotherLayout, ContinuesWithinRounding) {
  const gpt::TrainerOptions options = model_for_four();
  const TemporaryDirectory directory;
  train_and_save({2, 2}, options, directory);
  const Trace expected = uninterrupted({1, 1}, options).front();
  double worst = 0;
  for (const Layout layout : {Layout{1, 1}, {1, 4}, {4, 1}}) {
    for (const Trace& trace : load_and_continue(layout, options, directory)) {
      const Comparison comparison = compare(expected, trace, parity_tolerance);
      EXPECT_EQ(comparison.all(), "") << layout.data << "x" << layout.tensor;
      worst = std::max(worst, comparison.worst);
    }
  }
  RecordProperty("worst_relative_difference", fmt::format("{:.2g}", worst));
}

TEST(CheckpointControl, FailsWithoutTheMoments) {
  const gpt::TrainerOptions options = model_for_four();
  const TemporaryDirectory directory;
  train_and_save({1, 1}, options, directory);
  const Trace expected = uninterrupted({1, 1}, options).front();
  const Comparison comparison = compare(expected, load_and_continue({1, 1}, options, directory, false).front(), 1e-6);
  EXPECT_NE(comparison.loss, "");
  EXPECT_NE(comparison.parameter, "");
}

// One sentence for each error of a loaded checkpoint.
class CheckpointErrors : public testing::Test {
 protected:
  void SetUp() override { train_and_save({1, 1}, options, directory); }

  std::string error_of_loading(const std::string& path, const gpt::TrainerOptions& fresh) const {
    std::string sentence;
    run_threads(1, [&](const Communicator& world) {
      gpt::Trainer trainer(Mesh(world, {.tensor = 1, .data = 1}), fresh);
      try {
        gpt::load_checkpoint(trainer, path, true);
      } catch (const Error& error) {
        sentence = error.what();
      }
    });
    EXPECT_THAT(sentence, testing::EndsWith("."));
    EXPECT_THAT(sentence, testing::Not(testing::HasSubstr("\n")));
    return sentence;
  }

  const gpt::TrainerOptions options = model_for_four();
  const TemporaryDirectory directory;
  const std::string checkpoint = directory / "step_00000003";
  const std::string model = checkpoint + "/model.safetensors";
};

TEST_F(CheckpointErrors, AModelOfAnotherShape) {
  gpt::TrainerOptions wider = options;
  wider.model.hidden *= 2;
  EXPECT_THAT(error_of_loading(checkpoint, wider),
              testing::AllOf(testing::HasSubstr("[61, 32]"), testing::HasSubstr("[61, 64]")));
  gpt::TrainerOptions deeper = options;
  deeper.model.layers = 3;
  EXPECT_THAT(error_of_loading(checkpoint, deeper), testing::HasSubstr("has no tensor h.2."));
}

TEST_F(CheckpointErrors, NoCheckpoint) {
  try {
    gpt::find_checkpoint(directory / "nowhere");
    FAIL() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("There is no checkpoint in"));
  }
  EXPECT_EQ(gpt::find_checkpoint(checkpoint), checkpoint);
  EXPECT_EQ(gpt::find_checkpoint(directory.path()), checkpoint);
  std::filesystem::remove(model);
  EXPECT_THAT(error_of_loading(checkpoint, options), testing::HasSubstr("Cannot open"));
}

TEST_F(CheckpointErrors, AFileThatIsCutOff) {
  const auto bytes = std::filesystem::file_size(model);
  for (const std::uintmax_t left : {bytes - 1, bytes / 2, std::uintmax_t{1000}, std::uintmax_t{8}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(model, left);
    EXPECT_THAT(error_of_loading(checkpoint, options), testing::HasSubstr("model.safetensors")) << left;
  }
}

TEST_F(CheckpointErrors, AHeaderThatMakesNoSense) {
  const auto with_header = [&](std::uint64_t length, const std::string& header) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    directory.write("step_00000003/model.safetensors", text + header);
    return error_of_loading(checkpoint, options);
  };
  EXPECT_THAT(with_header(~std::uint64_t{0}, "{}      "), testing::HasSubstr("cut off"));
  EXPECT_THAT(with_header(~std::uint64_t{7}, "{}      "), testing::HasSubstr("cut off"));
  EXPECT_THAT(with_header(8, "no json!"), testing::HasSubstr("no JSON"));
  EXPECT_THAT(with_header(8, "[1,2,3] "), testing::HasSubstr("model.safetensors"));
  EXPECT_THAT(with_header(2, "{}"), testing::HasSubstr("no metadata"));
  const auto of = [&](const std::string& text) { return with_header(text.size(), text); };
  EXPECT_THAT(of(R"({"__metadata__":{"step":"three","optimizer_steps":"3"}})"), testing::HasSubstr("step"));
  EXPECT_THAT(of(R"({"__metadata__":{"step":3,"optimizer_steps":3}})"), testing::HasSubstr("step"));
  EXPECT_THAT(of(R"({"__metadata__":7})"), testing::HasSubstr("no metadata"));
  const std::string metadata = R"({"__metadata__":{"step":"3","optimizer_steps":"3"},"wte.weight":)";
  EXPECT_THAT(of(metadata + "5}"), testing::HasSubstr("does not describe"));
  EXPECT_THAT(of(metadata + R"({"dtype":"F64","shape":[61,32],"data_offsets":[0,15616]}})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(of(metadata + R"({"dtype":"F64","shape":[61,32],"data_offsets":[16,8]}})"),
              testing::HasSubstr("lies outside"));
  // 2^61 elements of 8 bytes overflow 64 bits to 0 bytes.
  EXPECT_THAT(of(metadata + R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(of(metadata + R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(of(metadata + R"({"dtype":"I8","shape":[61,32],"data_offsets":[0,0]}})"), testing::HasSubstr("I8"));
}

TEST_F(CheckpointErrors, OneOfTheSameStepIsReplaced) {
  directory.write("step_00000003/left_by_the_old_one", "");
  train_and_save({1, 1}, options, directory);
  load_and_continue({1, 1}, options, directory);
  EXPECT_FALSE(std::filesystem::exists(checkpoint + "/left_by_the_old_one"));
  const std::filesystem::directory_iterator left(directory.path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 2);  // the checkpoint, and the file that names the newest
}

// A checkpoint that cannot be written leaves no files, and the previous one stays valid.
TEST_F(CheckpointErrors, WhatCannotBeWrittenLeavesThePreviousOne) {
  directory.write("file", "in the way");
  run_threads(2, [&](const Communicator& world) {
    gpt::Trainer trainer(Mesh(world, {.tensor = 2, .data = 1}), options);
    try {
      gpt::save_checkpoint(trainer, directory / "file", 4);
      ADD_FAILURE() << "it was saved";
    } catch (const Error& error) {
      if (world.rank() == 0) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        world.abort(error.what());
      } else {
        EXPECT_EQ(error.code(), ErrorCode::peer_gave_up);
      }
    }
  });
  EXPECT_EQ(gpt::find_checkpoint(directory.path()), checkpoint);
}

}  // namespace
}  // namespace parity
