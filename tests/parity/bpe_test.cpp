// GPT-2's byte pair encoding on a small vocabulary: pieces, merges, bytes that are no UTF-8, and vocabularies that will not
// do.
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenize/bpe/bpe_tokenizer.hpp"

#include <gmock/gmock.h>

#include <random>

#include "apps/tokenize/bpe/pieces.hpp"
#include "apps/train/data/token_writer.hpp"
#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

using stretto::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> gpt2_pieces(std::string_view text) {
  std::vector<std::string> result;
  apps::Pieces pieces(text);
  for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) result.emplace_back(piece);
  return result;
}

TEST(BpePieces, AreCutAsGpt2CutsThem) {
  EXPECT_THAT(gpt2_pieces("Hello world's  end, 42nd"), ElementsAre("Hello", " world", "'s", " ", " end", ",", " 42", "nd"));
  EXPECT_THAT(gpt2_pieces("don't we'll I'D"), ElementsAre("don", "'t", " we", "'ll", " I", "'", "D"));
  EXPECT_THAT(gpt2_pieces("a \n\n  b\t"), ElementsAre("a", " \n\n ", " b", "\t"));
  EXPECT_THAT(gpt2_pieces("Größe 東京 ١٢ …"), ElementsAre("Größe", " 東京", " ١٢", " …"));
  // U+00A0 and U+3000 are white space, U+180E is not any more.
  EXPECT_THAT(gpt2_pieces("a\u00a0b\u3000\u180ec"), ElementsAre("a", "\u00a0", "b", "\u3000", "\u180e", "c"));
  EXPECT_TRUE(gpt2_pieces("").empty());
  EXPECT_THAT(gpt2_pieces(std::string("\0a", 2)), ElementsAre(std::string("\0", 1), "a"));
}

TEST(BpePieces, AreSingleBytesWhereThereIsNoUtf8) {
  EXPECT_THAT(gpt2_pieces("ab\xff\xfe cd"), ElementsAre("ab", "\xff", "\xfe", " cd"));
  EXPECT_THAT(gpt2_pieces("\xe6\x9d"), ElementsAre("\xe6", "\x9d"));                    // the beginning of a character
  EXPECT_THAT(gpt2_pieces("\xed\xa0\x80x"), ElementsAre("\xed", "\xa0", "\x80", "x"));  // a surrogate
  EXPECT_THAT(gpt2_pieces("\xc0\x80"), ElementsAre("\xc0", "\x80"));                    // too long
}

// The tokens of the 256 bytes in GPT-2's order, then one for each merge, then <|endoftext|>.
class SmallVocabulary {
 public:
  SmallVocabulary() {
    std::vector<std::string> symbols;
    std::string rest;
    for (int byte = 0, next = 256; byte < 256; ++byte) {
      const bool is_printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      symbols.push_back(utf8(is_printable ? byte : next++));
    }
    for (const std::string& symbol : symbols) add(symbol);
    for (const auto& [left, right] : {std::pair("a", "b"), {"b", "c"}, {"ab", "c"}, {"Ġ", "ab"}, {"x", "x"}}) {
      merges += std::string(left) + " " + right + "\n";
      add(std::string(left) + right);
    }
    add("<|endoftext|>");
  }

  apps::BpeTokenizer tokenizer() const {
    return {directory.write("encoder.json", json()), directory.write("vocab.bpe", merges)};
  }
  std::string json() const { return "{" + tokens + "}"; }

  std::string error() const {
    const std::string sentence = stretto::sentence_of([&] { tokenizer(); });
    EXPECT_TRUE(sentence.empty() || sentence.ends_with('.')) << sentence;
    return sentence;
  }

  const TemporaryDirectory directory;
  std::string tokens;
  std::string merges = "#version: 0.2\n";
  int count = 0;

 private:
  static std::string utf8(int character) {
    if (character < 128) return {static_cast<char>(character)};
    return {static_cast<char>(0xc0 | (character >> 6)), static_cast<char>(0x80 | (character & 63))};
  }
  void add(const std::string& symbol) {
    const std::string escaped = symbol == "\"" || symbol == "\\" ? "\\" + symbol : symbol;
    tokens += (count == 0 ? "\"" : ",\"") + escaped + "\":" + std::to_string(count);
    ++count;
  }
};

enum SmallToken : std::int32_t { ab = 256, bc, abc, space_ab, xx, end_of_text };

TEST(Bpe, MergesTheLowestRankFirst) {
  const SmallVocabulary vocabulary;
  apps::BpeTokenizer tokenizer = vocabulary.tokenizer();
  EXPECT_THAT(tokenizer.encode("abc"), ElementsAre(abc));
  EXPECT_THAT(tokenizer.encode("bc"), ElementsAre(bc));
  EXPECT_THAT(tokenizer.encode("bbcab"), ElementsAre('b', bc, ab));
  EXPECT_THAT(tokenizer.encode("xxx xxxx"), ElementsAre(xx, 'x', ' ', xx, xx));  // from the left
  EXPECT_THAT(tokenizer.encode(" ab abc"), ElementsAre(space_ab, ' ', abc));     // (ab, c) comes before (space, ab)
  EXPECT_THAT(tokenizer.encode("é\xff"), ElementsAre(0xc3, 0xa9, 0xff));
  EXPECT_EQ(tokenizer.beginning(), end_of_text);
  EXPECT_EQ(tokenizer.size(), 262);
  EXPECT_EQ(tokenizer.decode({end_of_text, abc, 0xff}), "<|endoftext|>abc\xff");
  EXPECT_EQ(tokenizer.encode("<|endoftext|>").size(), 13U) << "in a text it is text";
  EXPECT_THROW(tokenizer.decode({262}), stretto::Error);
  EXPECT_THROW(tokenizer.decode({-1}), stretto::Error);
}

TEST(Bpe, BringsAnyBytesBack) {
  const SmallVocabulary vocabulary;
  apps::BpeTokenizer tokenizer = vocabulary.tokenizer();
  std::mt19937 random(7);
  for (int turn = 0; turn < 200; ++turn) {
    std::string text;
    const int kind = turn % 3;
    for (int i = 0; i < 500; ++i) {
      const auto drawn = static_cast<char>(random());
      text += kind == 0   ? drawn
              : kind == 1 ? "abcx '\n"[static_cast<unsigned char>(drawn) % 7]
                          : (i % 50 == 0 ? drawn : 'x');
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  // One piece without an end takes no square of its length.
  const std::string long_word(1 << 20, 'x');
  EXPECT_EQ(tokenizer.encode(long_word).size(), long_word.size() / 2);
}

TEST(Bpe, RefusesWhatIsNoVocabulary) {
  const auto error_with = [](const std::function<void(SmallVocabulary&)>& change) {
    SmallVocabulary vocabulary;
    change(vocabulary);
    return vocabulary.error();
  };
  EXPECT_EQ(error_with([](SmallVocabulary&) {}), "");
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens = "no json"; }), HasSubstr("no vocabulary"));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens = ""; }), HasSubstr("no vocabulary"));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens = "\"a\":0"; }), HasSubstr("has no token"));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens += ",\"more\":300"; }), HasSubstr("'more' the number 300"));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens += ",\"more\":7"; }), HasSubstr("number 7"));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.tokens += ",\"more\":\"7\""; }), HasSubstr("\"7\""));
  EXPECT_THAT(error_with([](SmallVocabulary& v) { v.merges += "a q\n"; }),
              testing::AllOf(HasSubstr("'aq'"), HasSubstr("line 7")));
  for (const std::string line : {"a", "a b c", " a", "a "}) {
    EXPECT_THAT(error_with([&](SmallVocabulary& v) { v.merges += line + "\n"; }), HasSubstr("line 7")) << line;
  }
}

TEST(TokenWriter, WritesWhatTokenFileReads) {
  const TemporaryDirectory directory;
  const std::vector<std::int32_t> tokens = {50256, 1, 2, 3};
  const auto written = [&](apps::DataFormat format, std::int64_t vocabulary) {
    apps::TokenWriter writer(directory / "x.bin", format, vocabulary);
    writer.write(tokens);
    writer.end_document();
    writer.write(std::span(tokens).first(2));
    EXPECT_FALSE(std::filesystem::exists(directory / "x.bin")) << "it is not complete";
    writer.finish();
    const apps::TokenFile file = apps::TokenFile::open(directory / "x.bin", format);
    std::vector<std::int32_t> read(6);
    EXPECT_EQ(file.size(), 6);
    file.read(0, 6, vocabulary, read.data());
    EXPECT_THAT(read, ElementsAre(50256, 1, 2, 3, 50256, 1));
    std::string description = file.description();
    std::filesystem::remove(directory / "x.bin");
    return description;
  };
  using apps::DataFormat;
  EXPECT_THAT(written(DataFormat::llmc, 50257), HasSubstr("llm.c, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::nanogpt, 50257), HasSubstr("nanogpt, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::megatron, 50257), HasSubstr("megatron, 6 tokens of 16 bits"));
  EXPECT_THAT(written(DataFormat::megatron, 100000), HasSubstr("megatron, 6 tokens of 32 bits"));
  EXPECT_THROW(apps::TokenWriter(directory / "y.bin", DataFormat::llmc, 100000), stretto::Error);
  EXPECT_THROW(apps::TokenWriter(directory / "y.bin", DataFormat::bytes, 256), stretto::Error);
  EXPECT_THROW(apps::TokenWriter(directory / "nowhere/y.bin", DataFormat::llmc, 256), stretto::Error);
  apps::TokenWriter(directory / "abandoned.bin", DataFormat::llmc, 256).write(std::span(tokens));
  std::filesystem::remove(directory / "x.idx");
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

}  // namespace
}  // namespace parity
#endif
