// Training that is saved and continued, with equal bits on any layout; what lies on the disk; and the errors for damaged
// checkpoints.
#include "stretto/layers/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "../temporary_directory.hpp"
#include "../variables.hpp"
#include "two_parameters.hpp"

namespace stretto {
namespace {

struct Layout {
  MeshShape mesh;
  ZeroStage stage = ZeroStage::optimizer;
  DType dtype = DType::f64;
};

// One rank. A step's gradients depend on the element and on the step, not on the layout.
class Training {
 public:
  Training(const Communicator& world, const Layout& layout, std::uint64_t seed = 3, std::int64_t columns = 4)
      : mesh_(world, layout.mesh) {
    add_parameters(parameters_, mesh_, columns);
    sharded_.emplace(parameters_, mesh_,
                     ShardedParameters::Options{.zero = layout.stage, .dtype = layout.dtype, .unit_bytes = 64});
    sharded_->initialise(seed);
    optimizer_.emplace(*sharded_, AdamWOptimizer::Options());
  }

  void advance(std::int64_t first, std::int64_t count) {
    for (std::int64_t step = first; step < first + count; ++step) {
      sum_gradients(*sharded_, parameters_, [&](const std::string& name, std::int64_t i) {
        return random_normal(3, name, static_cast<std::uint64_t>(i + 100 * step));
      });
      optimizer_->step(1e-2, 0.7);
    }
  }

  void save(const std::string& directory, std::int64_t step, const std::map<std::string, std::string>& notes = {}) {
    save_checkpoint(*sharded_, *optimizer_, directory, step, notes);
  }

  LoadedCheckpoint load(const std::string& checkpoint, bool with_optimizer = true) {
    LoadedCheckpoint loaded = load_checkpoint(*sharded_, *optimizer_, checkpoint, with_optimizer);
    optimizer_->restore(loaded.optimizer_steps);
    return loaded;
  }

  // This rank's values by name and global index.
  std::map<std::string, double> values() const {
    std::map<std::string, double> result;
    const std::vector<Tensor> slices = sharded_->whole_values();
    for (const auto& parameter : parameters_.all()) {
      for_each_run(*parameter, 0, parameter->elements(), [&](std::int64_t here, std::int64_t whole, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          result[fmt::format("{}[{}]", parameter->name, whole + i)] = slices[parameter->index].at(here + i);
        }
      });
    }
    return result;
  }

 private:
  Mesh mesh_;
  Parameters parameters_;
  std::optional<ShardedParameters> sharded_;
  std::optional<AdamWOptimizer> optimizer_;
};

void on_ranks_of(const Layout& layout, const std::function<void(const Communicator&)>& body) {
  run_threads(static_cast<int>(layout.mesh.ranks()), body);
}

void train_and_save(const Layout& layout, const std::string& directory) {
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 3);
    training.save(directory, 3);
  });
}

// One rank's values after six steps without a break.
std::map<std::string, double> uninterrupted(DType dtype) {
  std::map<std::string, double> values;
  run_threads(1, [&](const Communicator& world) {
    Training training(world, {.dtype = dtype});
    training.advance(0, 6);
    values = training.values();
  });
  return values;
}

// The values of all ranks, each of which has trained the last three of six steps.
std::vector<std::map<std::string, double>> load_and_continue(const Layout& layout, const std::string& directory,
                                                             bool with_optimizer = true) {
  std::vector<std::map<std::string, double>> values(static_cast<std::size_t>(layout.mesh.ranks()));
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout, 99);  // no initial value of the fresh training may remain
    const LoadedCheckpoint loaded = training.load(find_checkpoint(directory), with_optimizer);
    EXPECT_EQ(loaded.step, 3);
    EXPECT_EQ(loaded.optimizer_steps, with_optimizer ? 3 : 0);
    training.advance(3, 3);
    values[static_cast<std::size_t>(world.rank())] = training.values();
  });
  return values;
}

class Checkpoint : public testing::TestWithParam<DType> {};

// Updates do not depend on the layout (AdamWOptimizer.GivesTheSameBits...), so that only the checkpoint can.
TEST_P(Checkpoint, ContinuesBitForBitOnAnyLayout) {
  const std::map<std::string, double> expected = uninterrupted(GetParam());
  const Layout layouts[] = {{{}, ZeroStage::none},
                            {{.data = 4}, ZeroStage::values},
                            {{.tensor = 2, .data = 2}, ZeroStage::optimizer},
                            {{.tensor = 4}, ZeroStage::none},
                            {{.data = 3}, ZeroStage::none},
                            {{.tensor = 2, .data = 3}, ZeroStage::gradients}};
  for (Layout from : layouts) {
    from.dtype = GetParam();
    const TemporaryDirectory directory;
    train_and_save(from, directory.path());
    for (Layout to : layouts) {
      to.dtype = GetParam();
      for (const std::map<std::string, double>& values : load_and_continue(to, directory.path())) {
        for (const auto& [element, value] : values) {
          ASSERT_EQ(value, expected.at(element)) << element << " from " << from.mesh.ranks() << " to " << to.mesh.ranks();
        }
      }
    }
  }
}

TEST_P(Checkpoint, ControlFailsWithoutTheMoments) {
  const Layout layout{.dtype = GetParam()};
  const TemporaryDirectory directory;
  train_and_save(layout, directory.path());
  EXPECT_EQ(load_and_continue(layout, directory.path()).front(), uninterrupted(GetParam()));
  EXPECT_NE(load_and_continue(layout, directory.path(), false).front(), uninterrupted(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Types, Checkpoint, testing::Values(DType::f64, DType::f32, DType::bf16),
                         [](const auto& cell) { return std::string(name(cell.param)); });

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Other programs read the files.
TEST(CheckpointFiles, AreSafetensors) {
  const TemporaryDirectory directory;
  const Layout layout{{.tensor = 2, .data = 2}};
  on_ranks_of(layout, [&](const Communicator& world) { Training(world, layout).save(directory.path(), 7); });
  EXPECT_EQ(content_of(directory / "latest"), "step_00000007\n");
  const std::string metadata = R"({"__metadata__":{"format":"pt","optimizer_steps":"0","step":"7"},)";
  const auto has_header = [](const std::string& file, std::string header, std::size_t bytes) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = header.size();
    std::string start(8, '\0');
    std::memcpy(start.data(), &length, 8);
    EXPECT_THAT(file, testing::StartsWith(start + header));
    EXPECT_EQ(file.size(), 8 + header.size() + bytes);
  };
  has_header(content_of(directory / "step_00000007/model.safetensors"),
             metadata + R"("divided":{"dtype":"F64","shape":[10,4],"data_offsets":[0,320]},)" +
                 R"("replicated":{"dtype":"F64","shape":[9],"data_offsets":[320,392]}})",
             392);
  has_header(content_of(directory / "step_00000007/optimizer.safetensors"),
             metadata + R"("m.divided":{"dtype":"F64","shape":[10,4],"data_offsets":[0,320]},)" +
                 R"("m.replicated":{"dtype":"F64","shape":[9],"data_offsets":[320,392]},)" +
                 R"("v.divided":{"dtype":"F64","shape":[10,4],"data_offsets":[392,712]},)" +
                 R"("v.replicated":{"dtype":"F64","shape":[9],"data_offsets":[712,784]}})",
             784);
}

TEST(CheckpointNotes, ComeBack) {
  const TemporaryDirectory directory;
  const Layout layout{{.data = 2}};
  const std::map<std::string, std::string> notes = {{"loss_scale", "65536"}, {"\"who\"", "J\u00f6rg\n"}, {"", ""}};
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.save(directory.path(), 1, notes);
    for (const bool with_optimizer : {false, true}) {
      EXPECT_EQ(training.load(find_checkpoint(directory.path()), with_optimizer).notes, notes);
    }
    training.save(directory.path(), 2);
    EXPECT_TRUE(training.load(find_checkpoint(directory.path())).notes.empty());
  });
}

TEST(CheckpointNotes, AreRefusedWhereTheyCannotBeKept) {
  const TemporaryDirectory directory;
  run_threads(1, [&](const Communicator& world) {
    Training training(world, {});
    const auto refusal = [&](const std::string& name, const std::string& text) {
      return sentence_of([&] { training.save(directory.path(), 1, {{name, text}}); });
    };
    for (const std::string name : {"step", "optimizer_steps", "format"}) {
      EXPECT_THAT(refusal(name, "5"), testing::HasSubstr("'" + name + "'"));
    }
    EXPECT_THAT(refusal("name", "\xff"), testing::HasSubstr("UTF-8"));
    EXPECT_THAT(refusal("\xff", "text"), testing::HasSubstr("UTF-8"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// One sentence for each error of a loaded checkpoint.
class CheckpointErrors : public testing::Test {
 protected:
  void SetUp() override { train_and_save({}, directory.path()); }

  std::string error_of_loading(std::int64_t columns = 4) const {
    std::string sentence;
    run_threads(1, [&](const Communicator& world) {
      Training training(world, {}, 99, columns);
      sentence = sentence_of([&] { training.load(checkpoint); });
    });
    EXPECT_THAT(sentence, testing::EndsWith("."));
    EXPECT_THAT(sentence, testing::Not(testing::HasSubstr("\n")));
    return sentence;
  }

  const TemporaryDirectory directory;
  const std::string checkpoint = directory / "step_00000003";
  const std::string model = checkpoint + "/model.safetensors";
};

TEST_F(CheckpointErrors, AModelOfAnotherShape) {
  EXPECT_THAT(error_of_loading(5), testing::AllOf(testing::HasSubstr("[10, 4]"), testing::HasSubstr("[10, 5]")));
}

TEST_F(CheckpointErrors, NoCheckpoint) {
  try {
    find_checkpoint(directory / "nowhere");
    FAIL() << "it was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("There is no checkpoint in"));
  }
  EXPECT_EQ(find_checkpoint(checkpoint), checkpoint);
  EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
  std::filesystem::remove(model);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("Cannot open"));
}

TEST_F(CheckpointErrors, AFileThatIsCutOff) {
  const auto bytes = std::filesystem::file_size(model);
  for (const std::uintmax_t left : {bytes - 1, bytes / 2, std::uintmax_t{100}, std::uintmax_t{8}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(model, left);
    EXPECT_THAT(error_of_loading(), testing::HasSubstr("model.safetensors")) << left;
  }
}

TEST_F(CheckpointErrors, AHeaderThatMakesNoSense) {
  const auto with_header = [&](std::uint64_t length, const std::string& header) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    directory.write("step_00000003/model.safetensors", text + header);
    return error_of_loading();
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
  const std::string metadata = R"({"__metadata__":{"step":"3","optimizer_steps":"3"})";
  EXPECT_THAT(of(metadata + "}"), testing::HasSubstr("has no tensor divided."));
  const auto described = [&](const std::string& tensor) { return of(metadata + R"(,"divided":)" + tensor + "}"); };
  EXPECT_THAT(described("5"), testing::HasSubstr("does not describe"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[10,4],"data_offsets":[0,320]})"), testing::HasSubstr("lies outside"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[10,4],"data_offsets":[16,8]})"), testing::HasSubstr("lies outside"));
  // 2^61 elements of 8 bytes overflow 64 bits to 0 bytes.
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(described(R"({"dtype":"I8","shape":[10,4],"data_offsets":[0,0]})"), testing::HasSubstr("I8"));
}

TEST_F(CheckpointErrors, OneOfTheSameStepIsReplaced) {
  directory.write("step_00000003/left_by_the_old_one", "");
  train_and_save({}, directory.path());
  load_and_continue({}, directory.path());
  EXPECT_FALSE(std::filesystem::exists(checkpoint + "/left_by_the_old_one"));
  const std::filesystem::directory_iterator left(directory.path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 2);  // the checkpoint, and the file that names the newest
}

TEST_F(CheckpointErrors, OldOnesAreRemovedAndNothingElse) {
  for (const char* const other : {"step_00000001", "step_00000002", "step_00000009", "mine", ".step_00000000.removed"})
    std::filesystem::create_directory(directory / other);
  remove_old_checkpoints(directory.path(), 2);
  const auto has = [&](const char* name) { return std::filesystem::exists(directory / name); };
  EXPECT_FALSE(has("step_00000001") || has(".step_00000000.removed"));
  EXPECT_TRUE(has("step_00000002") && has("step_00000003") && has("step_00000009") && has("mine"));
  remove_old_checkpoints(directory.path(), 1);
  EXPECT_FALSE(has("step_00000002"));
  EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
  EXPECT_EQ(sentence_of([&] { remove_old_checkpoints(directory.path(), 0); }),
            fmt::format("Of the checkpoints in {}, 0 cannot be kept; give 1 or more.", directory.path()));
}

// A checkpoint that cannot be written leaves no files, and the previous one stays valid.
TEST_F(CheckpointErrors, WhatCannotBeWrittenLeavesThePreviousOne) {
  directory.write("file", "in the way");
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{.tensor = 2}});
    try {
      training.save(directory / "file", 4);
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
  EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
  EXPECT_EQ(content_of(directory / "file"), "in the way");
}

}  // namespace
}  // namespace stretto
