// GGUF files: what is in them, and damaged ones, each of which must end in a sentence of its own.
#include "models/families/gguf/gguf_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gguf_bytes.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace stretto {
namespace {

using nlohmann::json;
using testing::HasSubstr;

GgufBytes small_file() {
  GgufBytes file;
  file.key("general.architecture", gguf::string, gguf_string("llama"));
  file.key("levels", gguf::array,
           gguf_array(gguf::array, 2, gguf_array(gguf::u8, 3, "\1\2\3") + gguf_array(gguf::string, 1, gguf_string("x"))));
  file.tensor("norm", {4}, gguf::F32, std::string(16, 'n'));
  file.tensor("weight", {32, 3, 2}, gguf::Q4_1, std::string(120, 'w'));
  return file;
}

class GgufFiles : public testing::Test {
 protected:
  std::string sentence(const std::string& bytes) const {
    const std::string path = directory.write("file.gguf", bytes);
    std::string found = sentence_of(ErrorCode::io, [&] { GgufFile file(path); });
    EXPECT_THAT(found, testing::AllOf(HasSubstr(path), testing::EndsWith("."), testing::Not(HasSubstr("\n"))));
    return found;
  }
  std::string sentence(const GgufBytes& file) const { return sentence(file.bytes()); }

  const TemporaryDirectory directory;
};

TEST_F(GgufFiles, HaveMetadataOfAllTypes) {
  for (const std::uint32_t version : {2, 3}) {
    GgufBytes bytes;
    bytes.version = version;
    bytes.key("u8", gguf::u8, bytes_of_number(std::uint8_t{200})).key("i8", gguf::i8, bytes_of_number(std::int8_t{-100}));
    bytes.key("u16", gguf::u16, bytes_of_number(std::uint16_t{60000}))
        .key("i16", gguf::i16, bytes_of_number(std::int16_t{-30000}));
    bytes.key("u32", gguf::u32, bytes_of_number(4000000000U)).key("i32", gguf::i32, bytes_of_number(-2000000000));
    bytes.key("u64", gguf::u64, bytes_of_number(~std::uint64_t{0}))
        .key("i64", gguf::i64, bytes_of_number(std::int64_t{-1} << 63));
    bytes.key("f32", gguf::f32, bytes_of_number(1e-5F)).key("f64", gguf::f64, bytes_of_number(0.1));
    bytes.key("no", gguf::boolean, std::string(1, '\0')).key("yes", gguf::boolean, "\1");
    bytes.key("text", gguf::string, gguf_string("J\u00f6rg\xff")).key("", gguf::string, gguf_string(""));
    bytes.key("tokens", gguf::array, gguf_array(gguf::string, 3, gguf_string("a") + gguf_string("") + gguf_string("bc")));
    bytes.key("scores", gguf::array, gguf_array(gguf::f32, 2, bytes_of_number(0.5F) + bytes_of_number(-1.0F)));
    bytes.key("nested", gguf::array,
              gguf_array(gguf::array, 2, gguf_array(gguf::i32, 1, bytes_of_number(7)) + gguf_array(gguf::boolean, 0, "")));
    const GgufFile file(directory.write("file.gguf", bytes.bytes()));
    const json expected = {{"u8", 200},
                           {"i8", -100},
                           {"u16", 60000},
                           {"i16", -30000},
                           {"u32", 4000000000U},
                           {"i32", -2000000000},
                           {"u64", ~std::uint64_t{0}},
                           {"i64", std::int64_t{-1} << 63},
                           {"f32", 1e-5F},
                           {"f64", 0.1},
                           {"no", false},
                           {"yes", true},
                           {"text", "J\u00f6rg\xff"},
                           {"", ""},
                           {"tokens", {"a", "", "bc"}},
                           {"scores", {0.5, -1}},
                           {"nested", {{7}, json::array()}}};
    EXPECT_EQ(file.metadata(), expected);
    EXPECT_TRUE(file.tensors().empty());
  }
}

TEST_F(GgufFiles, HaveTensorsInRowMajorOrder) {
  const GgufFile file(directory.write("file.gguf", small_file().bytes()));
  ASSERT_EQ(file.tensors().size(), 2U);
  const GgufTensor& weight = file.tensors()[1];
  EXPECT_EQ(weight.name, "weight");
  EXPECT_STREQ(weight.type->name, "Q4_1");
  EXPECT_EQ(weight.shape, (Shape{2, 3, 32}));
  EXPECT_EQ(weight.bytes, 120U);
  std::string data(120, ' ');
  file.read(weight.at, data.data(), data.size());
  EXPECT_EQ(data, std::string(120, 'w'));
  EXPECT_EQ(file.tensors()[0].at % 32, 0U);
}

TEST_F(GgufFiles, MayBeAlignedOtherwise) {
  GgufBytes bytes;
  bytes.alignment = 256;
  bytes.key("general.alignment", gguf::u32, bytes_of_number(256U));
  bytes.tensor("a", {1}, gguf::F32, "aaaa").tensor("b", {1}, gguf::F32, "bbbb").tensor("none", {0, 7}, gguf::F32, "");
  const GgufFile file(directory.write("file.gguf", bytes.bytes()));
  std::string data(4, ' ');
  file.read(file.tensors()[1].at, data.data(), data.size());
  EXPECT_EQ(data, "bbbb");
  EXPECT_EQ(file.tensors()[1].at % 256, 0U);
  EXPECT_EQ(file.tensors()[2].bytes, 0U);
  for (const auto& [type, value] : {std::pair<std::uint32_t, std::string>{gguf::u32, bytes_of_number(24U)},
                                    {gguf::u32, bytes_of_number(0U)},
                                    {gguf::i32, bytes_of_number(-32)},
                                    {gguf::u64, bytes_of_number(std::uint64_t{1} << 40)},
                                    {gguf::string, gguf_string("32")}}) {
    EXPECT_THAT(sentence(GgufBytes().key("general.alignment", type, value)),
                HasSubstr("a power of two for general.alignment"));
  }
}

TEST_F(GgufFiles, ThatAreCutOffAnywhere) {
  const std::string whole = small_file().bytes();
  const std::string path = directory.write("cut.gguf", whole);
  for (std::size_t left = whole.size(); left-- > 0;) {
    std::filesystem::resize_file(path, left);
    EXPECT_THAT(sentence_of(ErrorCode::io, [&] { GgufFile file(path); }),
                testing::AllOf(HasSubstr(path), testing::EndsWith(".")))
        << left;
  }
  EXPECT_THAT(sentence(whole.substr(0, whole.size() - 1)), HasSubstr("tensor weight would end behind them"));
  EXPECT_THAT(sentence(whole.substr(0, 30)), HasSubstr("bytes are left: it is damaged, or cut off."));
}

// Whatever the byte, the file is taken or refused in one sentence.
TEST_F(GgufFiles, WithOneOtherByteAnywhere) {
  const std::string whole = small_file().bytes();
  const std::string path = directory.write("file.gguf", whole);
  std::fstream change(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](std::size_t at, char byte) { change.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  int refused = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const int byte : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      put(i, static_cast<char>(byte));
      try {
        const GgufFile file(path);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(path), testing::EndsWith("."), testing::Not(HasSubstr("\x7f"))));
        ++refused;
      }
    }
    put(i, whole[i]);
  }
  EXPECT_GT(refused, 500);
}

TEST_F(GgufFiles, ThatAreNone) {
  EXPECT_THAT(sentence(""), HasSubstr("of 0 bytes is no GGUF file"));
  EXPECT_THAT(sentence("GGML" + std::string(40, '\0')), HasSubstr("is no GGUF file"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { GgufFile file(directory / "missing"); }), HasSubstr("No such file"));
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { GgufFile file(directory.path()); }), HasSubstr("is no GGUF file"));
  GgufBytes other;
  other.version = 1;
  EXPECT_THAT(sentence(other), HasSubstr("of version 1; versions 2 and 3"));
  other.version = 4;
  EXPECT_THAT(sentence(other), HasSubstr("of version 4"));
  other.version = 3U << 24;
  EXPECT_THAT(sentence(other), HasSubstr("big-endian"));
}

// None of these numbers may cost memory or time.
TEST_F(GgufFiles, WithCountsBeyondTheirEnd) {
  const auto header = [](std::uint64_t tensors, std::uint64_t keys) {
    return "GGUF" + bytes_of_number(3U) + bytes_of_number(tensors) + bytes_of_number(keys);
  };
  for (const std::uint64_t many :
       {std::uint64_t{1} << 20, std::uint64_t{1} << 40, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    EXPECT_THAT(sentence(header(many, 0)), HasSubstr(fmt::format("has {} tensors", many)));
    EXPECT_THAT(sentence(header(0, many)), HasSubstr(fmt::format("has {} keys", many)));
    EXPECT_THAT(sentence(GgufBytes().key("k", gguf::string, bytes_of_number(many))),
                HasSubstr(fmt::format("a string of {}", many)));
    for (const std::uint32_t type : {gguf::u8, gguf::string, gguf::array, gguf::f64}) {
      EXPECT_THAT(sentence(GgufBytes().key("k", gguf::array, gguf_array(type, many, std::string(40, '\0')))),
                  HasSubstr(fmt::format("has {} elements of an array", many)));
    }
    EXPECT_THAT(sentence(GgufBytes().entry("t", {many, 32, 2, 2}, gguf::F32, 0)), HasSubstr("tensor t"));
    EXPECT_THAT(sentence(GgufBytes().entry("t", {0, many, 1 << 25, 1 << 25}, gguf::F32, 0)), HasSubstr("which is too many"));
    EXPECT_THAT(sentence(GgufBytes().entry("t", {32}, gguf::F32, many & ~std::uint64_t{31})), HasSubstr("tensor t"));
  }
  // A file of many gigabytes, of which nothing lies on the disk: its header is not read without end.
  directory.write("file.gguf", GgufBytes().key("k", gguf::array, gguf_array(gguf::u8, 1 << 30, "")).bytes());
  std::filesystem::resize_file(directory / "file.gguf", std::uintmax_t{8} << 30);
  EXPECT_THAT(sentence_of(ErrorCode::io, [&] { GgufFile file(directory / "file.gguf"); }), HasSubstr("1073741824 elements"));
}

TEST_F(GgufFiles, WithFaultsInTheirValues) {
  EXPECT_THAT(sentence(GgufBytes().key("k", 13, std::string(8, '\0'))), HasSubstr("unknown type 13 of a value"));
  EXPECT_THAT(sentence(GgufBytes().key("k", gguf::array, gguf_array(99, 0, ""))), HasSubstr("unknown type 99 of a value"));
  EXPECT_THAT(sentence(GgufBytes().key("k", gguf::boolean, "\2")), HasSubstr("has 2 at byte"));
  EXPECT_THAT(sentence(GgufBytes().key("k", gguf::u8, "1").key("k", gguf::u8, "1")), HasSubstr("the key k twice"));
  std::string deep = gguf_array(gguf::u8, 1, "x");
  for (int level = 0; level < 3; ++level) deep = gguf_array(gguf::array, 1, deep);
  EXPECT_NO_THROW(GgufFile(directory.write("deep", GgufBytes().key("k", gguf::array, deep).bytes())));
  for (int level = 0; level < 1000; ++level) deep = gguf_array(gguf::array, 1, deep);
  EXPECT_THAT(sentence(GgufBytes().key("k", gguf::array, deep)), HasSubstr("5 levels deep"));
}

TEST_F(GgufFiles, WithFaultsInTheirTensors) {
  EXPECT_THAT(sentence(GgufBytes().entry("t", {4}, 4, 0)), HasSubstr("tensor t of the unknown type 4"));
  EXPECT_THAT(sentence(GgufBytes().entry("t", {4}, 1000, 0)), HasSubstr("unknown type 1000"));
  EXPECT_THAT(sentence(GgufBytes().entry("t", {1, 1, 1, 1, 1}, gguf::F32, 0)),
              HasSubstr("5 dimensions, where 4 are the most"));
  EXPECT_THAT(sentence(GgufBytes().entry("t", {48}, gguf::Q4_1, 0)),
              HasSubstr("rows of 48 elements, but blocks of Q4_1 have 32"));
  EXPECT_THAT(sentence(GgufBytes().entry("t", {32, 256}, gguf::Q4_K, 0)), HasSubstr("blocks of Q4_K have 256"));
  EXPECT_THAT(sentence(small_file().tensor("norm", {4}, gguf::F32, std::string(16, ' '))), HasSubstr("tensor norm twice"));
  EXPECT_THAT(sentence(small_file().entry("t", {1}, gguf::F32, 60)), HasSubstr("at byte 60 of its data"));
  EXPECT_THAT(sentence(small_file().entry("t", {1}, gguf::F32, 64)), HasSubstr("tensors weight and t at the same bytes"));
  EXPECT_THAT(sentence(small_file().entry("t", {30}, gguf::F32, 0)), HasSubstr("at the same bytes"));
  EXPECT_THAT(sentence(small_file().entry("t", {1}, gguf::F32, 160)), HasSubstr("tensor t would end behind them"));
  EXPECT_LT(sentence(GgufBytes().entry(std::string(5000, 'n'), {4}, 4, 0)).size(), 300U);
}

}  // namespace
}  // namespace stretto
