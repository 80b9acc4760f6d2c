// tiktoken's rank files: merges by the ranks of parts, special tokens behind the ranks, and files that will not do.
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenizers/files/rank_file.hpp"

#include <gmock/gmock.h>

#include "support/error.hpp"

namespace apps::rank_file_tests {
namespace {

using stretto::ErrorCode;
using stretto::sentence_of;
using testing::ElementsAre;
using testing::HasSubstr;

std::string base64(const std::string& bytes) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) bits = bits << 8 | (at + i < bytes.size() ? bytes[at + i] & 0xffU : 0);
    for (std::size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : digits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

// The 256 bytes in their order, and then "ab", "bc", "abc", "dabc": of the last no part but "d" and "abc" makes it.
std::string small_ranks() {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) text += base64({static_cast<char>(byte)}) + " " + std::to_string(rank++) + "\n";
  for (const char* token : {"ab", "bc", "abc", "dabc"}) text += base64(token) + " " + std::to_string(rank++) + "\n";
  return text;
}
enum : std::int32_t { ab = 256, bc, abc, dabc, end_of_text };

TEST(RankFile, MergesByTheRankOfWhatComesOut) {
  TextTokenizer tokenizer(read_ranks("x.tiktoken", small_ranks(), "gpt2"), false);
  EXPECT_THAT(tokenizer.encode("abcab"), ElementsAre(abc, ab));
  EXPECT_THAT(tokenizer.encode("bbc"), ElementsAre('b', bc));
  EXPECT_THAT(tokenizer.encode("dabc\xff"), ElementsAre(dabc, 0xff));
  EXPECT_THAT(tokenizer.encode("ab<|endoftext|>").size(), 14U) << "in a text it is text";
  EXPECT_EQ(tokenizer.separator(), end_of_text);
  EXPECT_EQ(tokenizer.size(), end_of_text + 1);
  EXPECT_EQ(tokenizer.decode({dabc, end_of_text, 0xff}), "dabc<|endoftext|>\xff");
  TextTokenizer finding(read_ranks("x.tiktoken", small_ranks(), "gpt2"), true);
  EXPECT_THAT(finding.encode("ab<|endoftext|>c"), ElementsAre(ab, end_of_text, 'c'));
}

TEST(RankFile, TakesAFamilysPatternAndSpecialTokens) {
  const auto tokens = [](const char* family, const std::string& text) {
    return TextTokenizer(read_ranks("x", small_ranks(), family), false).encode(text);
  };
  // Llama 3 takes the character before a word along, GPT-2 only a space.
  EXPECT_THAT(tokens("llama3", "(abc"), ElementsAre('(', abc));
  TextTokenizer llama(read_ranks("x", small_ranks(), "llama3"), false);
  EXPECT_EQ(llama.size(), 260 + 256);
  EXPECT_EQ(llama.beginning_of_text(), 260);
  EXPECT_EQ(llama.end_of_text(), 261);
  EXPECT_EQ(llama.decode({260, 260 + 12, 260 + 255}),
            "<|begin_of_text|><|reserved_special_token_2|><|reserved_special_token_245|>");
  TextTokenizer cl100k(read_ranks("x", small_ranks(), "cl100k"), false);
  EXPECT_EQ(cl100k.end_of_text(), 261);
  EXPECT_EQ(cl100k.size(), 281);
#ifdef STRETTO_HAVE_UTF8PROC
  EXPECT_EQ(tokens("qwen", "e\u0301"), tokens("qwen", "\u00e9"));
#endif
  EXPECT_NE(tokens("llama3", "e\u0301"), tokens("llama3", "\u00e9")) << "the control";
}

TEST(RankFile, IsRefusedWhereItIsDamaged) {
  const auto sentence = [](const std::string& text, const std::string& family = "gpt2") {
    return sentence_of([&] { read_ranks("x.tiktoken", text, family); });
  };
  EXPECT_THAT(sentence(small_ranks(), ""), HasSubstr("--tokenizer-pattern gpt2, or cl100k"));
  EXPECT_THAT(sentence(small_ranks(), "gpt5"), HasSubstr("'gpt5'"));
  EXPECT_THAT(sentence(small_ranks() + "!!!! 260\n"), HasSubstr("Line 261 of x.tiktoken"));
  EXPECT_THAT(sentence(small_ranks() + base64("zz") + "\n"), HasSubstr("Line 261"));
  EXPECT_THAT(sentence(small_ranks() + base64("zz") + " 260 1\n"), HasSubstr("Line 261"));
  EXPECT_THAT(sentence(small_ranks() + base64("zz") + " 999\n"), HasSubstr("rank 999"));
  EXPECT_THAT(sentence(small_ranks() + base64("zz") + " 7\n"), HasSubstr("rank 7 for the second time"));
  EXPECT_THAT(sentence(small_ranks() + base64("ab") + " 260\n"), HasSubstr("rank 260 twice"));
  EXPECT_THAT(sentence(small_ranks() + base64("zz") + " 261\n" + base64("zy") + " 262\n"), HasSubstr("lacks the rank 260"));
  EXPECT_THAT(sentence(base64("a") + " 0\n"), HasSubstr("byte 0x00"));
  EXPECT_EQ(sentence(small_ranks()), "");
}

}  // namespace
}  // namespace apps::rank_file_tests
#endif
