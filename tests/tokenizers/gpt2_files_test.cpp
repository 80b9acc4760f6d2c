// GPT-2's byte pair encoding on a small vocabulary: merges, bytes that are no UTF-8, and vocabularies that will not do.
#ifdef STRETTO_HAVE_PCRE2
#include <gmock/gmock.h>

#include <random>

#include "apps/tokenizers/read_tokenizer.hpp"
#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace apps::gpt2_files_tests {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

  std::unique_ptr<Tokenizer> tokenizer(const TokenizerOptions& options = {}) const {
    return read_gpt2_tokenizer(directory.write("encoder.json", json()), directory.write("vocab.bpe", merges), options);
  }
  std::string json() const { return "{" + tokens + "}"; }

  std::string error() const {
    const std::string sentence = stretto::sentence_of([&] { tokenizer(); });
    EXPECT_TRUE(sentence.empty() || sentence.ends_with('.')) << sentence;
    return sentence;
  }

  const stretto::TemporaryDirectory directory;
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

TEST(Gpt2Files, MergesTheLowestRankFirst) {
  const SmallVocabulary vocabulary;
  const std::unique_ptr<Tokenizer> tokenizer = vocabulary.tokenizer();
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(abc));
  EXPECT_THAT(tokenizer->encode("bc"), ElementsAre(bc));
  EXPECT_THAT(tokenizer->encode("bbcab"), ElementsAre('b', bc, ab));
  EXPECT_THAT(tokenizer->encode("xxx xxxx"), ElementsAre(xx, 'x', ' ', xx, xx));  // from the left
  EXPECT_THAT(tokenizer->encode(" ab abc"), ElementsAre(space_ab, ' ', abc));     // (ab, c) comes before (space, ab)
  EXPECT_THAT(tokenizer->encode("é\xff"), ElementsAre(0xc3, 0xa9, 0xff));
  EXPECT_EQ(tokenizer->beginning(), end_of_text);
  EXPECT_EQ(tokenizer->size(), 262);
  EXPECT_EQ(tokenizer->decode({end_of_text, abc, 0xff}), "<|endoftext|>abc\xff");
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13U) << "in a text it is text";
  EXPECT_THAT(vocabulary.tokenizer({.finds_special = true})->encode("x<|endoftext|>"), ElementsAre('x', end_of_text));
  EXPECT_THROW(tokenizer->decode({262}), stretto::Error);
  EXPECT_THROW(tokenizer->decode({-1}), stretto::Error);
}

TEST(Gpt2Files, BringsAnyBytesBack) {
  const SmallVocabulary vocabulary;
  const std::unique_ptr<Tokenizer> tokenizer = vocabulary.tokenizer();
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
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  // One piece without an end takes no square of its length.
  const std::string long_word(1 << 20, 'x');
  EXPECT_EQ(tokenizer->encode(long_word).size(), long_word.size() / 2);
}

TEST(Gpt2Files, RefusesWhatIsNoVocabulary) {
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

}  // namespace
}  // namespace apps::gpt2_files_tests
#endif
