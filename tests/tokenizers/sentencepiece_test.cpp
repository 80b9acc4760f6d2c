// sentencepiece's models, from protobuf to tokens, and GGUF vocabularies of the same kind.
#ifdef STRETTO_HAVE_PCRE2
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <limits>

#include "apps/tokenizers/files/gguf_vocabulary.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_file.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_normalizer.hpp"
#include "support/error.hpp"

namespace apps::sentencepiece_tests {
namespace {

using stretto::sentence_of;
using testing::ElementsAre;
using testing::HasSubstr;
using Type = SentencePieceModel::Type;

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string bytes_field(int field, const std::string& bytes) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string number_field(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string piece(const std::string& text, float score, Type type = Type::normal) {
  std::string bytes(sizeof score, '\0');
  std::memcpy(bytes.data(), &score, sizeof score);
  return bytes_field(1, bytes_field(1, text) + varint(2 << 3 | 5) + bytes + number_field(3, type));
}

std::string small_pieces() {
  return piece("<unk>", 0, Type::unknown) + piece("<s>", 0, Type::control) + piece("</s>", 0, Type::control) +
         piece("▁", -3) + piece("a", -3.5) + piece("b", -4) + piece("▁a", -1) + piece("ab", -2) + piece("▁ab", -1.5);
}
enum : std::int32_t { unknown, beginning, end, space, a, b, space_a, ab, space_ab };
std::string kind(SentencePieceModel::Kind kind) { return bytes_field(2, number_field(3, kind)); }

TextTokenizer read(const std::string& bytes, bool finds_special = false) {
  return {parts_of(read_sentencepiece("x.model", bytes), "x.model"), finds_special};
}

TEST(SentencePiece, OfBpeMergesTheBestScoreFirst) {
  TextTokenizer tokenizer = read(small_pieces() + kind(SentencePieceModel::bpe));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(space_ab)) << "▁a comes first, and then ▁ab";
  EXPECT_THAT(tokenizer.encode("bab"), ElementsAre(space, b, ab));
  EXPECT_THAT(tokenizer.encode("  a   ab "), ElementsAre(space_a, space_ab)) << "extra spaces go";
  EXPECT_THAT(tokenizer.encode("axyb"), ElementsAre(space_a, unknown, b)) << "unknown ones are fused";
  EXPECT_THAT(tokenizer.encode("<s>a").size(), 3U) << "control pieces are not found in a text";
  EXPECT_THAT(read(small_pieces() + kind(SentencePieceModel::bpe), true).encode("<s>a"), ElementsAre(beginning, space_a));
  EXPECT_EQ(tokenizer.beginning_of_text(), beginning);
  EXPECT_EQ(tokenizer.end_of_text(), end);
  EXPECT_EQ(tokenizer.decode({space_a, b, space_ab}), "ab ab");
  EXPECT_EQ(tokenizer.text_of({space_a}, false), " a");
}

TEST(SentencePiece, OfUnigramTakesTheLikeliestPieces) {
  TextTokenizer tokenizer = read(small_pieces() + kind(SentencePieceModel::unigram));
  EXPECT_THAT(tokenizer.encode("ab"), ElementsAre(space_ab));
  EXPECT_THAT(tokenizer.encode("aab"), ElementsAre(space_a, ab));
  EXPECT_THAT(tokenizer.encode("axyb"), ElementsAre(space_a, unknown, b));
  EXPECT_THAT(tokenizer.encode("\xff"), ElementsAre(space, unknown));
}

TEST(SentencePiece, UserDefinedPiecesAreNeverMerged) {
  const std::string pieces = small_pieces() + piece("bb", 0, Type::user_defined);
  TextTokenizer bpe = read(pieces + kind(SentencePieceModel::bpe)),
                unigram = read(pieces + kind(SentencePieceModel::unigram));
  EXPECT_THAT(bpe.encode("abbb"), ElementsAre(space_a, 9, b)) << "the leftmost bb";
  EXPECT_THAT(unigram.encode("abbb"), ElementsAre(space_ab, 9)) << "the likeliest way that has a bb";
  EXPECT_EQ(bpe.decode({space_a, 9, b}), "abbb");
}

TEST(SentencePiece, NormalizesAsItsSpecSays) {
  SentencePieceNormalizer normalizer;
  EXPECT_EQ(normalizer.normalized("  a  b "), "▁a▁b");
  EXPECT_EQ(normalizer.normalized("   "), "");
  EXPECT_EQ(normalizer.normalized("a\xff"), "▁a\ufffd");
  normalizer.removes_extra_spaces = false;
  EXPECT_EQ(normalizer.normalized(" a  b "), "▁▁a▁▁b▁");
  normalizer.adds_dummy_prefix = false;
  EXPECT_EQ(normalizer.normalized(" a"), "▁a");
  normalizer.escapes_spaces = false;
  EXPECT_EQ(normalizer.normalized(" a"), " a");
}

TEST(SentencePiece, IsRefusedByNameOrWhereItIsDamaged) {
  const auto sentence = [](const std::string& bytes) { return sentence_of([&] { read(bytes); }); };
  EXPECT_EQ(sentence(small_pieces()), "");
  EXPECT_THAT(sentence(small_pieces() + kind(SentencePieceModel::word)), HasSubstr("model of words"));
  EXPECT_THAT(sentence(small_pieces() + bytes_field(2, number_field(24, 1))), HasSubstr("treat_whitespace_as_suffix"));
  EXPECT_THAT(sentence(small_pieces() + bytes_field(2, number_field(35, 1))), HasSubstr("no piece <0x00>"));
  EXPECT_THAT(sentence(small_pieces() + bytes_field(3, bytes_field(2, "abcdefgh"))), HasSubstr("precompiled_charsmap"));
  EXPECT_THAT(sentence(small_pieces() + piece("", 0)), HasSubstr("piece 9"));
  EXPECT_THAT(sentence(small_pieces() + piece("x", 0, static_cast<Type>(7))), HasSubstr("type 7"));
  EXPECT_THAT(sentence(small_pieces() + piece("x", std::numeric_limits<float>::quiet_NaN())), HasSubstr("score nan"));
  EXPECT_THAT(sentence(small_pieces().substr(0, 20)), HasSubstr("x.model is cut off"));
  EXPECT_THAT(sentence(small_pieces() + "\x0f"), HasSubstr("wire type 7"));
  EXPECT_THAT(sentence(small_pieces() + number_field(1, 5)), HasSubstr("wire type 0, not 2"));
  EXPECT_THAT(sentence(piece("a", 0)), HasSubstr("no piece for what is unknown"));
  EXPECT_THAT(sentence(""), HasSubstr("no piece"));
}

GgufVocabulary gpt2_vocabulary() {
  GgufVocabulary gguf;
  gguf.model = "gpt2";
  gguf.pre = "smollm";
  gguf.tokens = {"<|im_end|>", "a", "b", "Ġ", "ab", "Ġab", "1"};
  gguf.types = {Type::control, Type::normal, Type::normal, Type::normal, Type::normal, Type::normal, Type::normal};
  gguf.merges = {"a b", "Ġ ab"};
  gguf.end = 0;
  return gguf;
}

TEST(GgufVocabulary, OfGpt2sKindIsCutAsItsPreSays) {
  const auto tokens = [](const GgufVocabulary& gguf, const std::string& text, bool special = false) {
    return TextTokenizer(parts_of(gguf, "x.gguf"), special).encode(text);
  };
  GgufVocabulary gguf = gpt2_vocabulary();
  EXPECT_THAT(tokens(gguf, "ab ab11"), ElementsAre(4, 5, 6, 6));
  EXPECT_THAT(tokens(gguf, "ab<|im_end|>", true), ElementsAre(4, 0));
  TextTokenizer tokenizer(parts_of(gguf, "x.gguf"), false);
  EXPECT_THAT(tokenizer.encode("axb axb"), ElementsAre(4, 5)) << "what is beside a byte without a token merges";
  EXPECT_EQ(tokenizer.left_out(), 2);
  gguf.pre = "bloom";
  EXPECT_THAT(sentence_of([&] { tokens(gguf, ""); }), HasSubstr("'bloom' for tokenizer.ggml.pre"));
  gguf.model = "bert";
  EXPECT_THAT(sentence_of([&] { tokens(gguf, ""); }), HasSubstr("'bert'"));
  gguf.types.pop_back();
  EXPECT_THAT(sentence_of([&] { tokens(gguf, ""); }), HasSubstr("6 of tokenizer.ggml.token_type in 7 tokens"));
}

TEST(GgufVocabulary, EachPatternCompiles) {
  GgufVocabulary gguf = gpt2_vocabulary();
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "deepseek-r1-qwen", "qwen35", "gpt-4o",
                          "deepseek-llm", "deepseek-coder", "deepseek-v3"}) {
    gguf.pre = pre;
    TextTokenizer tokenizer(parts_of(gguf, "x.gguf"), false);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab 1 ab11")), "ab 1 ab11") << pre;
  }
}

TEST(GgufVocabulary, OfLlamasKindIsSentencePieces) {
  GgufVocabulary gguf;
  gguf.model = "llama";
  gguf.tokens = {"<unk>", "<s>", "▁", "a", "▁a"};
  gguf.types = {Type::unknown, Type::control, Type::normal, Type::normal, Type::normal};
  gguf.scores = {0, 0, -3, -2, -1};
  for (int byte = 0; byte < 256; ++byte) {
    gguf.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    gguf.types.push_back(Type::byte);
    gguf.scores.push_back(0);
  }
  gguf.beginning = 1;
  TextTokenizer tokenizer(parts_of(gguf, "x.gguf"), false);
  EXPECT_THAT(tokenizer.encode("a  aé"), ElementsAre(4, 2, 4, 5 + 0xc3, 5 + 0xa9));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("  aé")), "  aé");
  EXPECT_EQ(tokenizer.beginning_of_text(), 1);
  gguf.scores.clear();
  EXPECT_THAT(sentence_of([&] { parts_of(gguf, "x.gguf"); }), HasSubstr("tokenizer.ggml.scores"));
}

}  // namespace
}  // namespace apps::sentencepiece_tests
#endif
