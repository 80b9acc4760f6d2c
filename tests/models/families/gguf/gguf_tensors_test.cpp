// Tensors of GGUF files as numbers, whole and in part, and as the weights of a model that is divided over ranks.
#include "models/families/gguf/gguf_tensors.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "gguf_bytes.hpp"
#include "layers/checkpoint/files/safetensors.hpp"
#include "models/families/packed_rows.hpp"
#include "stretto/layers/optimizers.hpp"
#include "stretto/stretto.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

std::vector<double> numbers_of(const WeightSource& source, const std::string& name, std::int64_t first, std::int64_t count) {
  std::vector<double> numbers(static_cast<std::size_t>(count));
  source.read(name, first, count, numbers.data());
  return numbers;
}

template <class T>
std::string plain_bytes(const std::vector<float>& numbers) {
  std::string bytes;
  for (const float number : numbers) bytes += bytes_of_number(T(number));
  return bytes;
}

// 16 bytes, whose lower halves are 0 to 15 and whose upper ones are 15 to 0.
std::string up_and_down() {
  std::string bytes;
  for (int i = 0; i < 16; ++i) bytes += static_cast<char>(i | (15 - i) << 4);
  return bytes;
}

TEST(GgufTensors, AreDequantized) {
  const TemporaryDirectory directory;
  const std::string scale = bytes_of_number(f16(0.5F)), least = bytes_of_number(f16(-3.0F));
  std::string eight_bits;
  for (int i = 0; i < 32; ++i) eight_bits += static_cast<char>(i * 8 - 128);
  const std::vector<float> some = {1, -2, 0.5, 1024};
  GgufBytes bytes;
  bytes.tensor("f32", {2, 2}, gguf::F32, plain_bytes<float>(some)).tensor("f16", {4}, gguf::F16, plain_bytes<f16>(some));
  bytes.tensor("bf16", {4}, gguf::BF16, plain_bytes<bf16>(some)).tensor("q4_0", {32}, gguf::Q4_0, scale + up_and_down());
  bytes.tensor("q4_1", {32}, gguf::Q4_1, scale + least + up_and_down()).tensor("q8_0", {32}, gguf::Q8_0, scale + eight_bits);
  const auto source = gguf_weights(directory.write("file.gguf", bytes.bytes()));
  ASSERT_EQ(source->tensors().size(), 6U);
  EXPECT_EQ(source->tensors()[0].shape, (Shape{2, 2}));
  EXPECT_EQ(source->tensors()[3].type, "Q4_0");
  EXPECT_EQ(source->file_of("f32"), directory / "file.gguf");
  for (const char* const name : {"f32", "f16", "bf16"}) {
    EXPECT_EQ(numbers_of(*source, name, 0, 4), (std::vector<double>{1, -2, 0.5, 1024})) << name;
  }
  const auto q4_0 = numbers_of(*source, "q4_0", 0, 32), q4_1 = numbers_of(*source, "q4_1", 0, 32);
  const auto q8_0 = numbers_of(*source, "q8_0", 0, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    const double four_bits = i < 16 ? static_cast<double>(i) : 31 - static_cast<double>(i);
    EXPECT_EQ(q4_0[i], 0.5 * (four_bits - 8));
    EXPECT_EQ(q4_1[i], 0.5 * four_bits - 3);
    EXPECT_EQ(q8_0[i], 0.5 * (static_cast<double>(i) * 8 - 128));
  }
}

// Any bytes of as many blocks of a type, with finite scales.
std::string any_blocks(const std::string& stream, std::int64_t blocks, std::size_t halves, std::size_t bytes) {
  std::string result;
  std::uint64_t index = 0;
  const auto draw = [&] { return random_uniform(1, stream, index++); };
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::size_t i = 0; i < halves; ++i) result += bytes_of_number(f16(static_cast<float>(draw() - 0.5)));
    for (std::size_t i = 0; i < bytes; ++i) result += static_cast<char>(static_cast<int>(draw() * 256));
  }
  return result;
}

TEST(GgufTensors, AreReadInAnyRange) {
  const TemporaryDirectory directory;
  constexpr std::int64_t elements = 32 * 2000;  // more than are dequantized at a time
  GgufBytes bytes;
  bytes.tensor("q4_1", {64, 1000}, gguf::Q4_1, any_blocks("q4_1", 2000, 2, 16));
  bytes.tensor("q8_0", {64, 1000}, gguf::Q8_0, any_blocks("q8_0", 2000, 1, 32));
  const auto source = gguf_weights(directory.write("file.gguf", bytes.bytes()));
  for (const char* const name : {"q4_1", "q8_0"}) {
    const auto whole = numbers_of(*source, name, 0, elements);
    EXPECT_NE(whole[0], whole[1]);
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                       {31, 2},
                                       {33, 30},
                                       {5, 50000},
                                       {elements - 1, 1},
                                       {elements, 0},
                                       {32, elements - 32}}) {
      const std::vector<double> part(whole.begin() + first, whole.begin() + first + count);
      EXPECT_EQ(numbers_of(*source, name, first, count), part) << name << " " << first << " " << count;
    }
  }
}

TEST(GgufTensors, OfOtherTypesAreRefusedByName) {
  const TemporaryDirectory directory;
  GgufBytes bytes;
  bytes.tensor("k", {256}, gguf::Q4_K, std::string(144, '\0')).tensor("i", {4}, gguf::I32, std::string(16, '\0'));
  bytes.tensor("f", {1}, gguf::F64, std::string(8, '\0')).tensor("fine", {1}, gguf::F32, std::string(4, '\0'));
  const std::string path = directory.write("file.gguf", bytes.bytes());
  const auto source = gguf_weights(path);
  const auto error = [&](const char* name) { return sentence_of(ErrorCode::io, [&] { numbers_of(*source, name, 0, 1); }); };
  EXPECT_EQ(error("k"), path + " has k as Q4_K; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 can be read.");
  EXPECT_THAT(error("i"), testing::HasSubstr("i as I32"));
  EXPECT_THAT(error("f"), testing::HasSubstr("f as F64"));
  EXPECT_FALSE(source->tensors()[1].is_floating());
  EXPECT_EQ(numbers_of(*source, "fine", 0, 1), std::vector<double>{0});
}

// q, k and v of 4 heads and 2 of keys and values, in interleaved rows; `down` is divided within its blocks of 32.
std::vector<ForeignRows> mapping(const Parameter& parameter) {
  const ForeignTensor q{"attn_q", {32, 64}}, k{"attn_k", {16, 64}}, v{"attn_v", {16, 64}}, down{"down", {64, 64}};
  if (parameter.name == "down") return first_rows(parameter, down);
  return packed_qkv_rows({4, 2, 8}, {q, 0, 32}, {k, 0, 16}, {v, 0, 16}, RowOrder::interleaved);
}

// The values of all ranks of a model that reads the source, by name and index in the whole.
std::map<std::pair<std::string, std::int64_t>, double> values(const std::string& path, const MeshShape& mesh,
                                                              ZeroStage zero) {
  std::map<std::pair<std::string, std::int64_t>, double> result;
  std::mutex mutex;
  run_threads(static_cast<int>(mesh.ranks()), [&](const Communicator& world) {
    const Mesh ranks(world, mesh);
    Parameters parameters;
    const int count = ranks.size(Axis::tensor), rank = ranks.rank(Axis::tensor);
    parameters.add(Parameter::divided("qkv", {4, 16, 64}, 1, count, rank, {}));
    parameters.add(Parameter::divided("down", {64, 64}, 1, count, rank, {}));
    ShardedParameters sharded(parameters, ranks, {.zero = zero, .dtype = DType::f32, .unit_bytes = 256});
    const auto optimizer = make_optimizer(sharded, {});
    read_weights(sharded, *optimizer, *gguf_weights(path), mapping);
    optimizer->restore(0);
    const std::vector<Tensor> slices = sharded.whole_values();
    const std::lock_guard lock(mutex);
    for (const auto& each : parameters.all()) {
      for_each_run(*each, 0, each->elements(), [&](std::int64_t here, std::int64_t whole, std::int64_t length) {
        for (std::int64_t i = 0; i < length; ++i) result[{each->name, whole + i}] = slices[each->index].at(here + i);
      });
    }
  });
  return result;
}

TEST(GgufTensors, AreTheWeightsOfDividedModels) {
  const TemporaryDirectory directory;
  GgufBytes bytes;
  bytes.tensor("attn_q", {64, 32}, gguf::Q4_0, any_blocks("q", 64, 1, 16));
  bytes.tensor("attn_k", {64, 16}, gguf::Q4_1, any_blocks("k", 32, 2, 16));
  bytes.tensor("attn_v", {64, 16}, gguf::Q8_0, any_blocks("v", 32, 1, 32));
  bytes.tensor("down", {64, 64}, gguf::Q8_0, any_blocks("down", 128, 1, 32));
  const std::string path = directory.write("file.gguf", bytes.bytes());
  const auto source = gguf_weights(path);
  const auto one = values(path, {}, ZeroStage::none);
  ASSERT_EQ(one.size(), 8192U);
  EXPECT_EQ(one.at({"down", 4000}), numbers_of(*source, "down", 4000, 1)[0]);
  // Row 16 + 8 + 1 of the parameter is row 1 of the second part's second head, which is head 3, and so its pair 1: row 2.
  EXPECT_EQ(one.at({"qkv", 25 * 64 + 7}), numbers_of(*source, "attn_q", (3 * 8 + 2) * 64 + 7, 1)[0]);
  EXPECT_NE(one.at({"qkv", 25 * 64 + 7}), numbers_of(*source, "attn_q", (3 * 8 + 1) * 64 + 7, 1)[0]) << "the control";
  EXPECT_EQ(values(path, {{Axis::tensor, 2}}, ZeroStage::optimizer), one);
  EXPECT_EQ(values(path, {{Axis::tensor, 4}}, ZeroStage::optimizer), one);
  EXPECT_EQ(values(path, {{Axis::tensor, 2}, {Axis::data, 2}}, ZeroStage::values), one);
}

// ./dev interchange sets GGUF_REFERENCE to a folder with file.gguf, which the Python package gguf wrote, and what that
// package makes of its tensors, expected.safetensors.
TEST(GgufTensors, AreThoseOfThePackageGguf) {
  const char* const folder = std::getenv("GGUF_REFERENCE");
  if (folder == nullptr) GTEST_SKIP() << "GGUF_REFERENCE names no folder of GGUF's; ./dev interchange makes one";
  const auto source = gguf_weights(std::string(folder) + "/file.gguf");
  const SafetensorsReader expected(std::string(folder) + "/expected.safetensors");
  ASSERT_EQ(source->tensors().size(), expected.entries().size());
  for (const StoredTensor& tensor : source->tensors()) {
    const SafetensorsReader::View view = expected.tensor(tensor.name);
    EXPECT_EQ(tensor.shape, view.shape) << tensor.name;
    std::vector<double> theirs(static_cast<std::size_t>(view.elements));
    view.numbers(0, view.elements, theirs.data());
    EXPECT_EQ(numbers_of(*source, tensor.name, 0, view.elements), theirs) << tensor.name;
  }
}

}  // namespace
}  // namespace stretto
