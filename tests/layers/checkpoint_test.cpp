// Training that is saved and continued, with equal bits on any layout; what lies on the disk; and the errors for damaged
// checkpoints.
#include "stretto/layers/checkpoint.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "../temporary_directory.hpp"
#include "../variables.hpp"
#include "layers/checkpoint/checkpoint_directory.hpp"
#include "layers/checkpoint/safetensors.hpp"
#include "saved_training.hpp"

namespace stretto {
namespace {

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

// Other programs read the files. Rank 0 is the first of the tensor-parallel ranks, and has half of its slice.
TEST(CheckpointFiles, AreShardsInSafetensors) {
  const TemporaryDirectory directory;
  const Layout layout{{.tensor = 2, .data = 2}};
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
  const std::string shard = checkpoint + "/rank_00000.safetensors";
  const std::string index = checkpoint + "/index.json";
};

TEST_F(CheckpointErrors, AModelOfAnotherShape) {
  EXPECT_THAT(error_of_loading(5), testing::AllOf(testing::HasSubstr("[10, 4]"), testing::HasSubstr("[10, 5]")));
}

TEST_F(CheckpointErrors, AModelWithLessParameters) {
  std::string text = content_of(index);
  text.replace(text.find("\"tensors\":{"), 11, R"("tensors":{"h.9.bias":{"shape":[1],"pieces":[]},)");
  directory.write("step_00000003/index.json", text);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("has a parameter h.9.bias, which this model has not"));
}

TEST(Safetensors, OverlapAndHolesAreRefused) {
  const TemporaryDirectory directory;
  const auto sentence = [&](const std::string& first, const std::string& second, std::size_t bytes) {
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
                               R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
    const std::uint64_t length = header.size();
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    const std::string path = directory.write("file", text + header + std::string(bytes, 'x'));
    return sentence_of([&] { SafetensorsReader reader(path); });
  };
  EXPECT_EQ(sentence("[0,8]", "[8,16]", 16), "");
  EXPECT_EQ(sentence("[8,16]", "[0,8]", 16), "");
  EXPECT_THAT(sentence("[0,8]", "[4,12]", 12), testing::HasSubstr("overlap"));
  EXPECT_THAT(sentence("[0,8]", "[12,20]", 20), testing::HasSubstr("overlap or leave bytes between"));
  EXPECT_THAT(sentence("[0,8]", "[8,16]", 20), testing::HasSubstr("overlap or leave bytes between"));
  EXPECT_THAT(sentence("[0,8]", "[8,16]", 12), testing::HasSubstr("lies outside the file"));
}

// It must be no signal, whether the file is cut off before the tensor is asked for or after.
TEST_F(CheckpointErrors, AShardThatIsCutOffWhileItIsRead) {
  const SafetensorsReader reader(shard);
  const SafetensorsReader::View whole = reader.tensor("divided"), elements = reader.tensor("m.divided");
  std::vector<double> first(static_cast<std::size_t>(whole.elements));
  whole.read(0, whole.elements, first.data());
  for (std::int64_t i = 0; i < whole.elements; ++i) EXPECT_EQ(first[static_cast<std::size_t>(i)], whole.at(i));
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) / 3);
  const auto is_cut_off = testing::AllOf(testing::HasSubstr(shard), testing::HasSubstr("something cut it off meanwhile"));
  EXPECT_THAT(sentence_of([&] { static_cast<void>(elements.at(0)); }), is_cut_off);
  double value = 0;
  EXPECT_THAT(sentence_of([&] { elements.read(1, 1, &value); }), is_cut_off);
  EXPECT_THAT(sentence_of([&] { static_cast<void>(reader.tensor("v.divided").at(0)); }), is_cut_off);
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
  std::filesystem::remove(shard);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("Cannot open"));
  std::filesystem::remove(index);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("There is no checkpoint in"));
}

TEST_F(CheckpointErrors, TheNewestCompleteOneIsFound) {
  for (const char* const other : {"step_00000001", "step_00000002", "step_00000004"}) {
    std::filesystem::create_directory(directory / other);
    directory.write(std::string(other) + "/index.json", "{}");
  }
  std::string left_out = "of an earlier call";
  EXPECT_EQ(find_checkpoint(directory.path(), &left_out), checkpoint);
  EXPECT_EQ(left_out, "");
  std::filesystem::remove(index);
  EXPECT_EQ(find_checkpoint(directory.path(), &left_out), directory / "step_00000002");
  EXPECT_EQ(left_out, checkpoint);
  std::filesystem::remove_all(checkpoint);
  EXPECT_EQ(find_checkpoint(directory.path()), directory / "step_00000002");
  for (const char* const older : {"step_00000001", "step_00000002"}) std::filesystem::remove_all(directory / older);
  EXPECT_THAT(sentence_of([&] { find_checkpoint(directory.path()); }),
              testing::AllOf(testing::HasSubstr("no complete checkpoint in"), testing::HasSubstr("step_00000003")));
}

TEST_F(CheckpointErrors, AFileThatIsCutOff) {
  for (const std::string& file : {shard, index}) {
    const auto bytes = std::filesystem::file_size(file);
    for (const std::uintmax_t left : {bytes - 9, bytes / 2, std::uintmax_t{100}, std::uintmax_t{8}, std::uintmax_t{0}}) {
      std::filesystem::resize_file(file, left);
      EXPECT_THAT(error_of_loading(), testing::HasSubstr(file)) << left;
    }
    train_and_save({}, directory.path());
  }
}

TEST_F(CheckpointErrors, ShardsThatAreSwappedOrForeign) {
  const Layout layout{{.tensor = 2}};
  const auto load = [&] {
    return sentence_of([&] {
      on_ranks_of(layout, [&](const Communicator& world) {
        Training training(world, layout);
        const LoadedCheckpoint loaded = load_checkpoint(training.sharded(), training.optimizer(), checkpoint, true);
      });
    });
  };
  train_and_save(layout, directory.path());
  EXPECT_EQ(load(), "");
  const std::string other = checkpoint + "/rank_00001.safetensors";
  std::filesystem::copy_file(other, directory / "kept");
  std::filesystem::copy_file(shard, other, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(load(), testing::AllOf(testing::HasSubstr(other), testing::HasSubstr("was saved as rank_00000.safetensors")));
  std::filesystem::rename(directory / "kept", other);
  EXPECT_EQ(load(), "");
  std::filesystem::copy_file(shard, directory / "foreign");
  train_and_save(layout, directory.path());
  std::filesystem::rename(directory / "foreign", shard);
  EXPECT_THAT(load(), testing::AllOf(testing::HasSubstr(shard), testing::HasSubstr("belongs to another checkpoint")));
}

TEST_F(CheckpointErrors, AnIndexThatMakesNoSense) {
  const std::string text = content_of(index);
  const auto with = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(text.find(from), std::string::npos) << from;
    directory.write("step_00000003/index.json", std::string(text).replace(text.find(from), from.size(), to));
    return error_of_loading();
  };
  EXPECT_THAT(with(R"("step":3)", R"("step":"three")"), testing::HasSubstr("does not describe a checkpoint"));
  EXPECT_THAT(with(R"("step":3)", R"("step":-3)"), testing::HasSubstr("step -3"));
  for (const char* number : {"3.5", "1e300", "null", "1e999"}) {
    EXPECT_THAT(with(R"("step":3)", R"("step":)" + std::string(number)),
                testing::HasSubstr("does not describe a checkpoint"));
  }
  EXPECT_THAT(with(R"("step":3)", R"("step":5)"),
              testing::AllOf(testing::HasSubstr("of step 5"), testing::HasSubstr("step_00000003")));
  auto without = nlohmann::json::parse(text);
  without["tensors"].erase("divided");
  directory.write("step_00000003/index.json", without.dump());
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("has no parameter divided"));
  EXPECT_THAT(with(R"("begin":0)", R"("begin":1)"), testing::HasSubstr("outside its shape"));
  EXPECT_THAT(with(R"("first":[0,0])", R"("first":[0])"), testing::HasSubstr("outside its shape"));
  EXPECT_THAT(with(R"("extents":[10,4])", R"("extents":[10,4294967296])"), testing::HasSubstr("outside its shape"));
  EXPECT_THAT(with(R"("count":40)", R"("count":39)"), testing::HasSubstr("39"));
  EXPECT_THAT(with(R"("shard":0)", R"("shard":1)"), testing::HasSubstr("1 shards"));
  EXPECT_THAT(with(R"("file":"rank_00000.safetensors")", R"("file":"../rank_00000")"), testing::HasSubstr("../rank_00000"));
}

TEST_F(CheckpointErrors, AHeaderThatMakesNoSense) {
  const auto with_header = [&](std::uint64_t length, const std::string& header) {
    std::string text(8, '\0');
    std::memcpy(text.data(), &length, 8);
    directory.write("step_00000003/rank_00000.safetensors", text + header);
    // The index must not be what notices.
    auto its_index = nlohmann::json::parse(content_of(index));
    its_index["shards"][0]["bytes"] = text.size() + header.size();
    its_index["id"] = "5";
    directory.write("step_00000003/index.json", its_index.dump());
    return error_of_loading();
  };
  EXPECT_THAT(with_header(~std::uint64_t{0}, "{}      "), testing::HasSubstr("cut off"));
  EXPECT_THAT(with_header(~std::uint64_t{7}, "{}      "), testing::HasSubstr("cut off"));
  EXPECT_THAT(with_header(8, "no json!"), testing::HasSubstr("no JSON"));
  EXPECT_THAT(with_header(1 << 20, std::string(1 << 20, '[')), testing::HasSubstr("no JSON"));
  EXPECT_THAT(with_header(8, "[1,2,3] "), testing::HasSubstr("rank_00000.safetensors"));
  EXPECT_THAT(with_header(2, "{}"), testing::HasSubstr("no metadata"));
  const auto of = [&](const std::string& text) { return with_header(text.size(), text); };
  EXPECT_THAT(of(R"({"__metadata__":{"checkpoint":5}})"), testing::HasSubstr("no metadata"));
  EXPECT_THAT(of(R"({"__metadata__":7})"), testing::HasSubstr("no metadata"));
  const std::string metadata = R"({"__metadata__":{"checkpoint":"5","shard":"rank_00000.safetensors"})";
  EXPECT_THAT(of(metadata + "}"), testing::HasSubstr("has no tensor replicated."));
  const auto described = [&](const std::string& tensor) { return of(metadata + R"(,"replicated":)" + tensor + "}"); };
  EXPECT_THAT(described("5"), testing::HasSubstr("does not describe"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[9],"data_offsets":[0,72]})"), testing::HasSubstr("lies outside"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[9],"data_offsets":[16,8]})"), testing::HasSubstr("lies outside"));
  // 2^61 elements of 8 bytes overflow 64 bits to 0 bytes.
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
              testing::HasSubstr("lies outside"));
  EXPECT_THAT(described(R"({"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
              testing::HasSubstr("lies outside"));
  for (const char* number : {"4611686015168601842738", "1e300", "9.5"}) {
    EXPECT_THAT(described(fmt::format(R"({{"dtype":"F64","shape":[{}],"data_offsets":[0,0]}})", number)),
                testing::HasSubstr("does not describe"));
    EXPECT_THAT(described(fmt::format(R"({{"dtype":"F64","shape":[0],"data_offsets":[0,{}]}})", number)),
                testing::HasSubstr("does not describe"));
  }
  EXPECT_THAT(described(R"({"dtype":"I8","shape":[9],"data_offsets":[0,0]})"), testing::HasSubstr("I8"));
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
  for (const char* const other : {"step_00000000", "step_00000001", "step_00000002", "step_00000009", "mine",
                                  ".step_00000000.removed", ".step_00000004.unfinished"})
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

TEST_F(CheckpointErrors, ASaverKeepsTheNewest) {
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{.data = 2}});
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

// Quantized sums carry errors and random numbers from step to step, besides the optimizer's state.
class CheckpointOfQuantizedSums : public testing::Test {
 protected:
  static constexpr Layout four = {{.data = 4}, ZeroStage::values, DType::f32, true};

  // Errors that have yet to be fed back, over all ranks, by element.
  static std::map<std::string, double> errors_of(Training& training, const Communicator& world) {
    std::map<std::string, double> errors;
    const ShardedParameters& sharded = training.sharded();
    for (const auto& parameter : sharded.parameters().all()) {  // here each is a unit of its own
      Tensor sum({parameter->elements()}, DType::f32, Device::cpu);
      sum.zero();
      for (const ErrorFeedback::Entry& entry : sharded.errors().entries()) {
        if (entry.tensor == parameter->name) sum.copy_from(entry.values.view(0, {parameter->elements()}));
      }
      world.all_reduce(sum, ReduceOp::sum, Stream::inline_()).wait();
      for (std::int64_t i = 0; i < sum.size(); ++i) errors[fmt::format("{}[{}]", parameter->name, i)] = sum.at(i);
    }
    return errors;
  }

  void SetUp() override {
    on_ranks_of(four, [&](const Communicator& world) {
      Training training(world, four);
      training.advance(0, 3);
      training.save(directory.path(), 3);
      const auto errors = errors_of(training, world);
      training.advance(3, 3);
      const auto values = training.values();
      if (world.rank() != 0) return;
      saved_errors = errors;
      uninterrupted = values;
    });
  }

  const TemporaryDirectory directory;
  std::map<std::string, double> saved_errors, uninterrupted;
};

TEST_F(CheckpointOfQuantizedSums, GoesOnBitForBitInTheSameLayout) {
  for (const auto& values : load_and_continue(four, directory.path())) EXPECT_EQ(values, uninterrupted);
  EXPECT_NE(load_and_continue(four, directory.path(), false).front(), uninterrupted);  // the control
}

TEST_F(CheckpointOfQuantizedSums, KeepsTheErrorsOfAllRanksInAnotherLayout) {
  EXPECT_NE(std::ranges::count_if(saved_errors, [](const auto& error) { return error.second != 0; }), 0);
  for (const int ranks : {2, 3}) {
    Layout other = four;
    other.mesh.data = ranks;
    on_ranks_of(other, [&](const Communicator& world) {
      Training training(world, other);
      training.load(find_checkpoint(directory.path()));
      for (const auto& [element, error] : errors_of(training, world)) {
        EXPECT_NEAR(error, saved_errors.at(element), 1e-6) << element;
      }
    });
  }
}

// What is saved is the state at save(), whatever training does while it is written.
TEST(CheckpointInBackground, HasTheStateOfItsStep) {
  const Layout layout{{.tensor = 2, .data = 2}, ZeroStage::values};
  const TemporaryDirectory directory;
  on_ranks_of(layout, [&](const Communicator& world) {
    Training training(world, layout);
    training.advance(0, 3);
    CheckpointSaver saver(training.sharded(), training.optimizer(), directory.path(), {.in_background = true});
    saver.save(3);
    training.advance(3, 5);
  });
  const std::map<std::string, double> expected = uninterrupted(layout.dtype);
  for (const auto& values : load_and_continue({}, directory.path())) EXPECT_EQ(values, expected);
}

// A checkpoint that cannot be written leaves no files, and the previous one stays valid. Training can go on.
TEST_F(CheckpointErrors, ADirectoryIsTriedAndLeftAsItWas) {
  run_threads(2, [&](const Communicator& world) {
    Training training(world, {{.data = 2}});
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
    Training training(world, {{.tensor = 2}});
    const auto expect_failure = [&](int rank, const std::function<void()>& save) {
      try {
        save();
        ADD_FAILURE() << "it was saved";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), world.rank() == rank ? ErrorCode::io : ErrorCode::peer_gave_up) << error.what();
        EXPECT_THAT(error.what(), testing::HasSubstr(directory.path()));
      }
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
