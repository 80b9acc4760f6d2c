// Files of tokens as other tools write them: what they are recognised as, their tokens, and the errors of those that will
// not do.
#include "apps/train/data/token_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

using apps::DataFormat;
using apps::TokenFile;
using stretto::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// The bytes of numbers in memory, which are those of the files: little-endian.
template <class T>
std::string raw(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

std::string llmc_file(std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return raw(header) + tokens;
}

struct MegatronParts {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::vector<std::int32_t> lengths = {3, 0, 2};
  std::vector<std::int64_t> pointers = {0, 6, 6};
  std::vector<std::int64_t> documents = {0, 2, 3};
  std::string index() const {
    return magic + raw<std::uint64_t>({version}) + raw<std::uint8_t>({type}) + raw<std::uint64_t>({lengths.size()}) +
           raw<std::uint64_t>({documents.size()}) + raw(lengths) + raw(pointers) + raw(documents);
  }
};

const std::vector<std::uint16_t> five_tokens = {50256, 1, 2, 65535, 4};

std::vector<std::int32_t> tokens_of(const TokenFile& file, std::int64_t vocabulary = 1 << 20) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.size()));
  file.read(0, file.size(), vocabulary, tokens.data());
  return tokens;
}

std::string error_of_opening(const std::string& path, DataFormat format = DataFormat::recognised) {
  std::string sentence = stretto::sentence_of([&] { TokenFile::open(path, format); });
  if (!sentence.empty()) {
    EXPECT_THAT(sentence, AllOf(testing::EndsWith("."), testing::Not(HasSubstr("\n"))));
  }
  return sentence;
}

TEST(TokenFileFormats, AreRecognised) {
  const TemporaryDirectory directory;
  const TokenFile gpt2 = TokenFile::open(directory.write("a.bin", llmc_file(20240520, 1, 5, raw(five_tokens))));
  EXPECT_THAT(tokens_of(gpt2), ElementsAre(50256, 1, 2, 65535, 4));
  EXPECT_THAT(gpt2.description(), AllOf(HasSubstr("a.bin: llm.c, 5 tokens of 16 bits")));
  const std::string wide = raw<std::uint32_t>({128000, 7});
  const TokenFile llama = TokenFile::open(directory.write("without_a_name", llmc_file(20240801, 7, 2, wide)));
  EXPECT_THAT(tokens_of(llama), ElementsAre(128000, 7));
  const TokenFile bytes = TokenFile::open(directory.write("text", "A\n\xff"));
  EXPECT_TRUE(bytes.is_bytes());
  EXPECT_THAT(tokens_of(bytes), ElementsAre('A', '\n', 255));

  directory.write("m.bin", raw(five_tokens));
  directory.write("m.idx", MegatronParts().index());
  for (const char* const name : {"m", "m.bin"}) {
    const TokenFile megatron = TokenFile::open(directory / name);
    EXPECT_THAT(tokens_of(megatron), ElementsAre(50256, 1, 2, 65535, 4));
    EXPECT_THAT(megatron.description(), HasSubstr("m.bin: megatron, 5 tokens of 16 bits"));
  }
}

// NumPy's files: {'descr': ..., 'shape': ...} and the numbers, of any whole type, in rows one after the other.
std::string npy_file(const std::string& type, const std::string& shape, const std::string& numbers, bool by_columns = false,
                     char version = 1) {
  std::string header =
      fmt::format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}", type, by_columns ? "True" : "False", shape);
  header.resize(118, ' ');
  const auto length = raw<std::uint32_t>({118});
  return std::string("\x93NUMPY") + version + '\0' + length.substr(0, version == 1 ? 2 : 4) + header + numbers;
}

TEST(TokenFileFormats, OfNumpyHaveEveryWholeType) {
  const TemporaryDirectory directory;
  const auto tokens = [&](const std::string& content) {
    const TokenFile file = TokenFile::open(directory.write("a.npy", content));
    EXPECT_EQ(file.format(), DataFormat::npy);
    return tokens_of(file);
  };
  EXPECT_THAT(tokens(npy_file("'<u2'", "(5,)", raw(five_tokens))), ElementsAre(50256, 1, 2, 65535, 4));
  EXPECT_THAT(tokens(npy_file("'<i4'", "(1, 2)", raw<std::int32_t>({128000, 7}), false, 2)), ElementsAre(128000, 7));
  EXPECT_THAT(tokens(npy_file("'<i8'", "(2,)", raw<std::int64_t>({128000, 7}))), ElementsAre(128000, 7));
  EXPECT_THAT(tokens(npy_file("'|u1'", "(1, 3)", "abc")), ElementsAre('a', 'b', 'c'));
  const auto error = [&](const std::string& content, DataFormat format = DataFormat::recognised) {
    return error_of_opening(directory.write("a.npy", content), format);
  };
  EXPECT_THAT(error(npy_file("'<f4'", "(1,)", "1234")), AllOf(HasSubstr("'<f4'"), HasSubstr("uint16")));
  EXPECT_THAT(error(npy_file("'>u2'", "(1,)", "12")), HasSubstr("'>u2'"));
  EXPECT_THAT(error(npy_file("'<u2'", "(2, 1)", "1234", true)), HasSubstr("ascontiguousarray"));
  EXPECT_THAT(error(npy_file("'<u2'", "(3,)", "1234")), HasSubstr("4 bytes"));
  EXPECT_THAT(error(npy_file("'<u2'", "(0,)", "")), HasSubstr("0 bytes"));
  EXPECT_THAT(error(npy_file("'<u2'", "(4611686018427387904, 8)", "1234")), HasSubstr("4 bytes"));
  EXPECT_THAT(error(npy_file("'<u2'", "(1,)", "12").substr(0, 60)), HasSubstr("60 bytes"));
  EXPECT_THAT(error("\x93NUMPY"), HasSubstr("6 bytes"));
  EXPECT_THAT(error(npy_file("'<u2'", "(1,)", "12"), DataFormat::nanogpt), HasSubstr("NumPy"));
  EXPECT_THAT(error("text", DataFormat::npy), HasSubstr("NUMPY"));
}

// Their bytes would be trained on without a word.
TEST(TokenFileFormats, OfOtherToolsAreRefused) {
  const TemporaryDirectory directory;
  const std::string tensors = raw<std::uint64_t>({15}) + R"({"a":{"dtype":1})";
  for (const auto& [begins, way] :
       std::vector<std::pair<std::string, std::string>>{{"\x1f\x8b\x08", "gzip -dk"},
                                                        {"\x28\xb5\x2f\xfd", "zstd -d"},
                                                        {"BZh91AY&SY", "bzip2 -dk"},
                                                        {std::string("\xfd"
                                                                     "7zXZ\0",
                                                                     6),
                                                         "xz -dk"},
                                                        {"PAR1", "read_parquet"},
                                                        {std::string("ARROW1\0\0", 8), "read_feather"},
                                                        {"\xff\xff\xff\xff", "from_file"},
                                                        {"PK\x03\x04", "numpy.save"},
                                                        {tensors, "safetensors"},
                                                        {"{\"text\": \"one\"}\n{\"text\": ", "jq -r .text"}}) {
    const std::string path = directory.write("data", begins + "and more");
    EXPECT_THAT(error_of_opening(path), AllOf(HasSubstr(path), HasSubstr(way), HasSubstr("--data-format bytes")));
    EXPECT_TRUE(TokenFile::open(path, DataFormat::bytes).is_bytes());
    EXPECT_THAT(error_of_opening(path, DataFormat::nanogpt), HasSubstr(way));
  }
  EXPECT_EQ(error_of_opening(directory.write("text.jsonl", "no object")), "");
  EXPECT_THAT(error_of_opening(directory.write("long.jsonl", "{" + std::string(2 << 20, ' ') + "}\n")), HasSubstr("jq"));
  EXPECT_EQ(error_of_opening(directory.write("source", "{ int i; }\n")), "");
  EXPECT_EQ(error_of_opening(directory.write("source", "{\"text\": 1}")), "") << "an object that no line ends";
}

// A .bin without a header could be nanoGPT's or anything else.
TEST(TokenFileFormats, AreNotGuessed) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("train.bin", raw(five_tokens));
  EXPECT_THAT(error_of_opening(path), AllOf(HasSubstr(path), HasSubstr("--data-format nanogpt")));
  EXPECT_THAT(tokens_of(TokenFile::open(path, DataFormat::nanogpt)), ElementsAre(50256, 1, 2, 65535, 4));
  EXPECT_EQ(TokenFile::open(path, DataFormat::bytes).size(), 10);
  directory.write("train.idx", "another tool's index");
  EXPECT_THAT(error_of_opening(path),
              AllOf(HasSubstr("train.idx does not begin with MMIDIDX"), HasSubstr("--data-format nanogpt")));
  EXPECT_THAT(error_of_opening(directory / "train"), HasSubstr("train.idx does not begin with MMIDIDX"));
  std::filesystem::remove(directory / "train.idx");
  EXPECT_THAT(error_of_opening(directory / "train"), HasSubstr("train.idx: No such file"));
  EXPECT_THAT(error_of_opening(directory.write("m.idx", MegatronParts().index())), HasSubstr("give the .bin"));
  for (const char* const name : {"auto", "bytes", "llm.c", "nanogpt", "megatron", "npy"}) {
    EXPECT_STREQ(apps::name(apps::data_format_from_name(name)), name);
  }
}

TEST(TokenFileFormats, OfMegatronHaveEveryIntegerType) {
  const TemporaryDirectory directory;
  const auto tokens = [&](std::uint8_t type, const std::string& bytes, std::int64_t width) {
    directory.write("m.idx", MegatronParts{.type = type, .lengths = {2}, .pointers = {0}, .documents = {0, 1}}.index());
    directory.write("m.bin", bytes);
    EXPECT_EQ(bytes.size(), static_cast<std::size_t>(2 * width));
    return tokens_of(TokenFile::open(directory / "m"));
  };
  EXPECT_THAT(tokens(1, raw<std::uint8_t>({200, 1}), 1), ElementsAre(200, 1));
  EXPECT_THAT(tokens(2, raw<std::int8_t>({100, 1}), 1), ElementsAre(100, 1));
  EXPECT_THAT(tokens(3, raw<std::int16_t>({3000, 1}), 2), ElementsAre(3000, 1));
  EXPECT_THAT(tokens(4, raw<std::int32_t>({100000, 1}), 4), ElementsAre(100000, 1));
  EXPECT_THAT(tokens(5, raw<std::int64_t>({100000, 1}), 8), ElementsAre(100000, 1));
  EXPECT_THAT(tokens(8, raw<std::uint16_t>({60000, 1}), 2), ElementsAre(60000, 1));
}

TEST(TokenFileErrors, NameATokenBeyondTheVocabulary) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("a.bin", llmc_file(20240520, 1, 5, raw(five_tokens)));
  const TokenFile file = TokenFile::open(path);
  const auto error_of_reading = [](const TokenFile& tokens, std::int64_t vocabulary) {
    return stretto::sentence_of([&] { tokens_of(tokens, vocabulary); });
  };
  EXPECT_EQ(error_of_reading(file, 65536), "");
  EXPECT_THAT(error_of_reading(file, 65535),
              AllOf(HasSubstr(path), HasSubstr("token 65535 at position 3"), HasSubstr("65534")));
  EXPECT_THAT(error_of_reading(file, 256), HasSubstr("token 50256 at position 0"));
  directory.write("m.idx", MegatronParts{.type = 4, .lengths = {1}, .pointers = {0}, .documents = {0, 1}}.index());
  directory.write("m.bin", raw<std::int32_t>({-7}));
  EXPECT_THAT(error_of_reading(TokenFile::open(directory / "m"), 65535), HasSubstr("token -7 at position 0"));
}

TEST(TokenFileErrors, OfLlmcFiles) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::string& content, DataFormat format = DataFormat::recognised) {
    return error_of_opening(directory.write("a.bin", content), format);
  };
  const std::string tokens = raw(five_tokens);
  EXPECT_THAT(error(llmc_file(20240520, 1, 5, tokens).substr(0, 1030)),
              AllOf(HasSubstr("1030 bytes"), HasSubstr("5 tokens")));
  EXPECT_THAT(error(llmc_file(20240520, 1, 5, tokens) + "x"), HasSubstr("1035 bytes"));
  EXPECT_THAT(error(llmc_file(20240520, 1, 5, tokens).substr(0, 900)), HasSubstr("900 bytes"));
  EXPECT_THAT(error(llmc_file(20240520, 1, 0, "")), HasSubstr("0 tokens"));
  EXPECT_THAT(error(llmc_file(20240520, 1, -5, tokens)), HasSubstr("-5 tokens"));
  EXPECT_THAT(error(llmc_file(20240520, 2, 5, tokens)), AllOf(HasSubstr("20240520 and 2"), HasSubstr("version 1")));
  // A model of llm.c's is no data; nor does it pass for nanoGPT's.
  EXPECT_THAT(error(llmc_file(20240326, 3, 5, tokens), DataFormat::llmc), HasSubstr("20240326 and 3"));
  EXPECT_THAT(error(llmc_file(20240520, 1, 5, tokens), DataFormat::nanogpt), HasSubstr("llm.c's header"));
  EXPECT_THAT(error("abc", DataFormat::nanogpt), HasSubstr("3 bytes"));
  EXPECT_THAT(error("abc", DataFormat::llmc), HasSubstr("begins with 0"));
}

TEST(TokenFileErrors, OfMegatronFiles) {
  const TemporaryDirectory directory;
  directory.write("m.bin", raw(five_tokens));
  const auto error_of_index = [&](const std::string& index) {
    directory.write("m.idx", index);
    return error_of_opening(directory / "m", DataFormat::megatron);
  };
  EXPECT_THAT(error_of_opening(directory / "m", DataFormat::megatron), HasSubstr("m.idx: No such file"));
  EXPECT_EQ(error_of_index(MegatronParts().index()), "");
  EXPECT_THAT(error_of_index("MMIDIDY"), HasSubstr("does not begin with MMIDIDX"));
  const auto error = [&](const MegatronParts& parts) { return error_of_index(parts.index()); };
  EXPECT_THAT(error({.version = 2}), HasSubstr("version 2"));
  EXPECT_THAT(error({.type = 7}), HasSubstr("type 7"));
  EXPECT_THAT(error({.type = 0}), HasSubstr("type 0"));
  EXPECT_THAT(error({.type = 200}), HasSubstr("type 200"));
  EXPECT_THAT(error({.lengths = {3, 0, 1}}), AllOf(HasSubstr("m.bin has 10 bytes"), HasSubstr("4 tokens")));
  EXPECT_THAT(error({.lengths = {3, 1, 1}}), AllOf(HasSubstr("sequence 2"), HasSubstr("byte 6"), HasSubstr("byte 8")));
  EXPECT_THAT(error({.lengths = {3, -1, 3}}), HasSubstr("sequence 1 of -1"));
  EXPECT_THAT(error({.documents = {0, 3, 2}}), HasSubstr("document 2"));
  EXPECT_THAT(error({.documents = {1, 3}}), HasSubstr("document 0"));
  EXPECT_THAT(error({.documents = {0, 4}}), HasSubstr("sequence 4 of 3"));
  const std::string whole = MegatronParts().index();
  for (std::size_t bytes : {std::size_t{9}, std::size_t{20}, std::size_t{33}, whole.size() - 1}) {
    EXPECT_THAT(error_of_index(whole.substr(0, bytes)), HasSubstr("cut off")) << bytes;
  }
  EXPECT_THAT(error_of_index(whole + std::string(3, '\0')), HasSubstr("multimodal"));
  // Counts whose product overflows.
  std::string huge = whole;
  huge.replace(18, 8, raw<std::uint64_t>({~std::uint64_t{0} / 12 + 2}));
  EXPECT_THAT(error_of_index(huge), HasSubstr("cut off"));
}

}  // namespace
}  // namespace parity
