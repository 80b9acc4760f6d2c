// What checkpoints are on the disk: their files, the notes in them, and which of them are found, kept and removed.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/files/safetensors.hpp"
#include "saved_checkpoint.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

// Other programs read the files. Rank 0 is the first of the tensor-parallel ranks, and has half of its slice.
TEST(CheckpointFiles, AreShardsInSafetensors) {
  const TemporaryDirectory directory;
  const Layout layout{{{Axis::tensor, 2}, {Axis::data, 2}}};
  on_ranks_of(layout, [&](const Communicator& world) { Training(world, layout).save(directory.path(), 7); });
  EXPECT_EQ(content_of(directory / "latest"), "step_00000007\n");
  std::int64_t elements = 0;
  for (const std::string shard : {"rank_00000", "rank_00001", "rank_00002", "rank_00003"}) {
    const SafetensorsReader file(directory / "step_00000007/" + shard + ".safetensors");
    EXPECT_EQ(file.metadata("format"), "pt");
    for (const TensorEntry& entry : file.entries()) {
      EXPECT_EQ(entry.type, "F64");
      elements += file.tensor(entry.name).elements;
    }
  }
  EXPECT_EQ(elements, 3 * (10 * 4 + 9));  // each element of values and moments once
  const SafetensorsReader first(directory / "step_00000007/rank_00000.safetensors");
  EXPECT_EQ(first.tensor("divided").elements, first.tensor("m.divided").elements);
  const auto index = nlohmann::json::parse(content_of(directory / "step_00000007/index.json"));
  EXPECT_EQ(index.at("step"), 7);
  EXPECT_EQ(index.at("optimizer"), nlohmann::json::parse(R"({"name": "adamw", "slots": ["m", "v"]})"));
  EXPECT_EQ(index.at("shards").size(), 4U);
  EXPECT_EQ(index.at("tensors").at("divided").at("shape"), (std::vector<int>{10, 4}));
}

// A rank that owns a whole parameter saves it in its shape.
TEST(CheckpointFiles, OfOneRankHaveWholeTensors) {
  const TemporaryDirectory directory;
  train_and_save({}, directory.path());
  const SafetensorsReader file(directory / "step_00000003/rank_00000.safetensors");
  EXPECT_EQ(file.tensor("divided").shape, (Shape{10, 4}));
  EXPECT_EQ(file.tensor("v.replicated").shape, (Shape{9}));
}

TEST(CheckpointNotes, ComeBack) {
  const TemporaryDirectory directory;
  const Layout layout{{{Axis::data, 2}}};
  const std::map<std::string, std::string> notes = {{"loss_scale", "65536"}, {"\"who\"", "J\u00f6rg\n"}, {"", ""}};
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.save(directory.path(), 1, notes);
    for (const bool with_optimizer : {false, true}) {
      EXPECT_EQ(training.load(find_checkpoint(directory.path()), with_optimizer).notes, notes);
    }
    EXPECT_EQ(read_notes(find_checkpoint(directory.path())).notes, notes);
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
    EXPECT_THAT(refusal("name", "\xff"), testing::HasSubstr("UTF-8"));
    EXPECT_THAT(refusal("\xff", "text"), testing::HasSubstr("UTF-8"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST_F(CheckpointErrors, TheNewestCompleteOneIsFound) {
  for (const char* const other : {"step_00000001", "step_00000002", "step_00000004"}) {
    std::filesystem::create_directory(directory / other);
    directory.write(std::string(other) + "/index.json", "{}");
  }
  std::string left_out = "of an earlier call";
  EXPECT_EQ(find_checkpoint(directory.path(), &left_out), checkpoint);
  EXPECT_EQ(left_out, "");
  std::filesystem::rename(directory / "latest", directory / "renamed");
  EXPECT_EQ(find_checkpoint(directory.path()), directory / "step_00000004");
  EXPECT_TRUE(has_checkpoint(directory.path()));
  std::filesystem::rename(directory / "renamed", directory / "latest");
  std::filesystem::remove(index);
  EXPECT_EQ(find_checkpoint(directory.path(), &left_out), directory / "step_00000002");
  EXPECT_EQ(left_out, checkpoint);
  std::filesystem::remove_all(checkpoint);
  EXPECT_EQ(find_checkpoint(directory.path()), directory / "step_00000002");
  for (const char* const older : {"step_00000001", "step_00000002"}) std::filesystem::remove_all(directory / older);
  EXPECT_THAT(sentence_of([&] { find_checkpoint(directory.path()); }),
              testing::AllOf(testing::HasSubstr("no complete checkpoint in"), testing::HasSubstr("step_00000003")));
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
  for (const char* const other :
       {"step_00000000", "step_00000001", "step_00000002", "step_00000009", "mine", ".step_00000004.unfinished"})
    std::filesystem::create_directory(directory / other);
  for (const char* const complete : {"step_00000000", "step_00000001"})
    directory.write(fmt::format("{}/index.json", complete), "{}");
  remove_old_checkpoints(directory.path(), 2);
  const auto has = [&](const char* name) { return std::filesystem::exists(directory / name); };
  EXPECT_FALSE(has("step_00000000") || has(".step_00000000.removed"));
  EXPECT_FALSE(has("step_00000002")) << "it has no index.json, so that it is none of those kept";
  EXPECT_TRUE(has("step_00000001") && has("step_00000003") && has("step_00000009") && has("mine"));
  EXPECT_TRUE(has(".step_00000004.unfinished"));
  remove_old_checkpoints(directory.path(), 1);
  EXPECT_FALSE(has("step_00000001"));
  EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
}

TEST_F(CheckpointErrors, WhatAKilledJobLeftGoesWhenTheNextOneBegins) {
  for (const char* const left : {".step_00000000.removed", ".step_00000004.unfinished"})
    directory.write(fmt::format("{}/file", left), "");
  begin_checkpoint(directory.path(), "step_00000005");
  discard_checkpoint(directory.path(), "step_00000005");
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
}

TEST_F(CheckpointErrors, ASaverKeepsTheNewest) {
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{{Axis::data, 2}}});
    CheckpointSaver saver(training.sharded(), training.optimizer(), directory.path(), {.in_background = true, .keep = 2});
    for (std::int64_t step = 4; step < 8; ++step) saver.save(step);
    saver.wait();
    EXPECT_EQ(
        sentence_of([&] { CheckpointSaver(training.sharded(), training.optimizer(), directory.path(), {.keep = -1}); }),
        fmt::format("Of the checkpoints in {}, -1 cannot be kept; give 1 or more, or 0 for all.", directory.path()));
  });
  const std::filesystem::directory_iterator left(directory.path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 3);
  EXPECT_EQ(find_checkpoint(directory.path()), directory / "step_00000007");
}

// A checkpoint that cannot be written leaves no files, and the previous one stays valid. Training can go on.
TEST_F(CheckpointErrors, ADirectoryIsTriedAndLeftAsItWas) {
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{{Axis::data, 2}}});
    const auto error_of = [&](const std::string& path) {
      CheckpointSaver saver(training.sharded(), training.optimizer(), path, {});
      return sentence_of([&] { saver.check_directory(); });
    };
    EXPECT_EQ(error_of(directory / "a/b/"), "");
    EXPECT_EQ(error_of(directory.path()), "");
    EXPECT_THAT(error_of(index + "/save"),
                testing::HasSubstr(world.rank() == 0 ? "Not a directory" : "Rank 0 could not save"));
  });
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("latest", "step_00000003"));
}

TEST_F(CheckpointErrors, WhatCannotBeWrittenLeavesThePreviousOne) {
  directory.write("file", "in the way");
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{{Axis::tensor, 2}}});
    const auto expect_failure = [&](int rank, const std::function<void()>& save) {
      const ErrorCode code = world.rank() == rank ? ErrorCode::io : ErrorCode::peer_gave_up;
      EXPECT_THAT(sentence_of(code, save), testing::HasSubstr(directory.path()));
    };
    expect_failure(0, [&] { training.save(directory / "file", 4); });
    CheckpointSaver saver(training.sharded(), training.optimizer(), directory.path(), {.in_background = true});
    const std::filesystem::path in_the_way = directory / "latest.new/file";  // of the file that names the newest
    if (world.rank() == 0) std::filesystem::create_directories(in_the_way);
    expect_failure(0, [&] {
      saver.save(4);
      saver.wait();
    });
    if (world.rank() == 0) {
      EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
      const std::filesystem::directory_iterator left(directory.path());
      EXPECT_EQ(std::distance(begin(left), end(left)), 4);  // the checkpoint, what names it, and what is in the way
      std::filesystem::remove_all(directory / "latest.new");
    }
    saver.save(5);
  });
  EXPECT_EQ(find_checkpoint(directory.path()), directory / "step_00000005");
  EXPECT_EQ(content_of(directory / "file"), "in the way");
}

}  // namespace
}  // namespace stretto
