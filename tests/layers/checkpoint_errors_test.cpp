// One sentence for each error of a checkpoint that is loaded.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "layers/checkpoint/files/safetensors.hpp"
#include "saved_checkpoint.hpp"
#include "support/error.hpp"

namespace stretto {
namespace {

TEST_F(CheckpointErrors, AModelOfAnotherShape) {
  EXPECT_THAT(error_of_loading(5), testing::AllOf(testing::HasSubstr("[10, 4]"), testing::HasSubstr("[10, 5]")));
}

TEST_F(CheckpointErrors, AModelWithLessParameters) {
  std::string text = content_of(index);
  text.replace(text.find("\"tensors\":{"), 11, R"("tensors":{"h.9.bias":{"shape":[1],"pieces":[]},)");
  directory.write("step_00000003/index.json", text);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("has a parameter h.9.bias, which this model has not"));
}

// The values alone can be loaded all the same.
TEST_F(CheckpointErrors, AnotherOptimizer) {
  using testing::HasSubstr;
  for (const double momentum : {0.0, 0.5}) {
    run_threads(1, [&](const Communicator& world) {
      Training training(world, {.optimizer = SGD::Options{.momentum = momentum}});
      EXPECT_THAT(sentence_of([&] { training.load(checkpoint); }),
                  testing::AllOf(HasSubstr("adamw (m, v)"), HasSubstr(momentum == 0 ? "sgd without" : "sgd (momentum)")));
      EXPECT_EQ(training.load(checkpoint, false).step, 3);
    });
  }
}

// A version that had AdamW alone named no optimizer.
TEST_F(CheckpointErrors, NoOptimizerIsAdamW) {
  const auto expected = load_and_continue({}, directory.path());
  auto json = nlohmann::ordered_json::parse(content_of(index));
  EXPECT_EQ(json.erase("optimizer"), 1U);
  directory.write("step_00000003/index.json", json.dump());
  EXPECT_EQ(load_and_continue({}, directory.path()), expected);
  EXPECT_EQ(error_of_loading(4, SGD::Options{}).find("was saved by adamw (m, v)"), checkpoint.size() + 1);
}

TEST_F(CheckpointErrors, NoCheckpoint) {
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { find_checkpoint(directory / "nowhere"); }),
              testing::HasSubstr("There is no checkpoint in"));
  EXPECT_EQ(find_checkpoint(checkpoint), checkpoint);
  EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
  std::filesystem::remove(shard);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("Cannot open"));
  std::filesystem::remove(index);
  EXPECT_THAT(error_of_loading(), testing::HasSubstr("There is no checkpoint in"));
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

TEST_F(CheckpointErrors, ShardsThatAreSwappedOrForeign) {
  const Layout layout{{{Axis::tensor, 2}}};
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
  EXPECT_THAT(with(R"("optimizer_steps":3)", R"("optimizer_steps":-1)"), testing::HasSubstr("-1 steps"));
  EXPECT_THAT(with(R"("bytes":)", R"("bytes":-)"), testing::HasSubstr("index.json says"));
  EXPECT_THAT(with(R"("xxh3":")", R"("xxh3":"x)"), testing::HasSubstr("for the xxh3"));
  EXPECT_THAT(with(R"("step":3)", R"("step":3,"replicas":2)"), testing::HasSubstr("divides 1 shards into 2 replicas"));
  EXPECT_THAT(with(R"("step":3)", R"("step":3,"replicas":0)"), testing::HasSubstr("into 0 replicas"));
  auto twice = nlohmann::json::parse(text);  // an element from two shards, and another from none
  auto& pieces = twice["tensors"]["replicated"]["pieces"];
  pieces.push_back(pieces[0]);
  directory.write("step_00000003/index.json", twice.dump());
  EXPECT_THAT(error_of_loading(),
              testing::AllOf(testing::HasSubstr("one shard for each"), testing::HasSubstr("replicated")));
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
    its_index["shards"][0].erase("xxh3");
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
  EXPECT_THAT(described(R"({"dtype":"I8","shape":[9],"data_offsets":[0,0]})"),
              testing::AllOf(testing::HasSubstr("I8"), testing::HasSubstr("replicated")));
}

// Without the checksum in the index, the flipped bit is a number like any other.
TEST_F(CheckpointErrors, AShardWhoseBytesHaveChanged) {
  std::string bytes = content_of(shard);
  bytes[bytes.size() - 3] ^= 1;
  directory.write("step_00000003/rank_00000.safetensors", bytes);
  EXPECT_THAT(error_of_loading(), testing::AllOf(testing::HasSubstr(shard), testing::HasSubstr("checksum")));
  auto without = nlohmann::json::parse(content_of(index));
  without["shards"][0].erase("xxh3");
  directory.write("step_00000003/index.json", without.dump());
  run_threads(1, [&](const Communicator& world) { Training(world, {}, 99).load(checkpoint); });
  // Whole numbers are no weights.
  const std::string floats = R"("F64","shape":[10,4])";
  bytes.replace(bytes.find(floats), floats.size(), R"("I32","shape":[10,8])");
  directory.write("step_00000003/rank_00000.safetensors", bytes);
  EXPECT_THAT(error_of_loading(), testing::AllOf(testing::HasSubstr(shard), testing::HasSubstr("divided as I32")));
}

TEST_F(CheckpointErrors, NumbersThatAreNone) {
  for (const double number : {std::nan(""), HUGE_VAL}) {
    run_threads(1, [&](const Communicator& world) {
      Training training(world, {});
      training.optimizer().states()[1].slots[0].set(7, number);
      training.save(directory.path(), 3);
    });
    EXPECT_THAT(error_of_loading(), testing::AllOf(testing::HasSubstr(checkpoint), testing::HasSubstr("m.divided"),
                                                   testing::HasSubstr(fmt::format("has {}", number))));
  }
}

TEST_F(CheckpointErrors, ANewestOneThatIsElsewhere) {
  std::filesystem::create_directory(directory / "inner");
  for (const char* const name : {"../step_00000003", "/etc", "..", "step_", "step_3/.."}) {
    directory.write("inner/latest", std::string(name) + "\n");
    EXPECT_THAT(sentence_of([&] { find_checkpoint(directory / "inner"); }),
                testing::AllOf(testing::HasSubstr("inner/latest"), testing::HasSubstr(fmt::format("'{}'", name))));
  }
  for (const char* const nothing : {"", "\n"}) {
    directory.write("latest", nothing);
    EXPECT_EQ(find_checkpoint(directory.path()), checkpoint);
  }
  std::filesystem::create_symlink("loop", directory / "loop");
  for (const auto& look : {std::function<void()>([&] { find_checkpoint(directory / "loop"); }),
                           std::function<void()>([&] { has_checkpoint(directory / "loop"); })}) {
    EXPECT_THAT(sentence_of(look), testing::AllOf(testing::HasSubstr(directory / "loop: "), testing::EndsWith(".")));
  }
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

}  // namespace
}  // namespace stretto
