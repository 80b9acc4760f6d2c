// What tokenizers do to texts before and beside their models: UTF-8, normalization, added tokens, tries and caches of words.
#ifdef STRETTO_HAVE_PCRE2
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "apps/tokenizers/models/word_cache.hpp"
#include "apps/tokenizers/text/added_tokens.hpp"
#include "apps/tokenizers/text/byte_alphabet.hpp"
#include "apps/tokenizers/text/normalizer.hpp"
#include "apps/tokenizers/text/utf8.hpp"
#include "stretto/error.hpp"

namespace apps::text_tests {
namespace {

using testing::ElementsAre;

TEST(Utf8, ValidCharactersAlone) {
  for (const std::uint32_t character : {0U, 0x7fU, 0x80U, 0x7ffU, 0x800U, 0xffffU, 0x10000U, 0x10ffffU}) {
    EXPECT_EQ(character_length(utf8(character)), utf8(character).size());
    EXPECT_EQ(first_character(utf8(character)), character);
  }
  for (const char* text :
       {"\x80", "\xc0\x80", "\xc3", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8", "\xe6\x9d"}) {
    EXPECT_EQ(character_length(text), 0U);
  }
  EXPECT_EQ(character_length(""), 0U);
  EXPECT_EQ(valid_length("0123456789é\xff"), 12U);
  EXPECT_TRUE(is_white_space(0x2003) && is_white_space('\t') && !is_white_space(0x180e) && !is_white_space(0x200b));
}

TEST(ByteAlphabet, IsGpt2s) {
  const ByteAlphabet alphabet;
  EXPECT_EQ(alphabet.character_of(' '), "Ġ");
  EXPECT_EQ(alphabet.character_of('\n'), "Ċ");
  EXPECT_EQ(alphabet.character_of(0xad), "Ń");
  EXPECT_EQ(alphabet.character_of(0xff), "ÿ");
  EXPECT_EQ(alphabet.bytes_of("Ġa"), " a");
  EXPECT_EQ(alphabet.bytes_of("｜"), std::nullopt);
}

TEST(Normalizer, StepByStep) {
  Normalizer normalizer;
  normalizer.prepend("_");
  normalizer.replace("aa", "b");
  normalizer.replace(Pattern("\\p{N}+"), "#");
  EXPECT_EQ(normalizer.normalized("aaa12\xff"
                                  "3"),
            "_ba#\xff#");
  EXPECT_EQ(normalizer.normalized(""), "");
}

#ifdef STRETTO_HAVE_UTF8PROC
TEST(Normalizer, TakesUnicodesForms) {
  const auto in_form = [](const char* form, const char* text) {
    Normalizer normalizer;
    normalizer.unicode_form(form);
    return normalizer.normalized(text);
  };
  EXPECT_EQ(in_form("NFC", "e\u0301\xff\u212b"), "é\xffÅ");
  EXPECT_EQ(in_form("NFD", "é"), "e\u0301");
  EXPECT_EQ(in_form("NFC", "ﬁ"), "ﬁ");
  EXPECT_EQ(in_form("NFKC", "ﬁ½"), "fi1\u20442");
  EXPECT_EQ(in_form("NFKD", "\u00a0"), " ");
  EXPECT_THROW(in_form("NFX", ""), stretto::Error);
}
#endif

std::vector<std::string> sections(const AddedTokens& tokens, std::string_view text) {
  std::vector<std::string> result;
  tokens.split(text, [&](std::string_view section, std::optional<std::int32_t> token) {
    result.push_back(token ? "<" + std::to_string(*token) + ":" + std::string(section) + ">" : std::string(section));
  });
  return result;
}

TEST(AddedTokens, TheLeftmostAndOfThoseTheLongestCounts) {
  const AddedTokens tokens({{.content = "ab", .token = 1}, {.content = "abc", .token = 2}, {.content = "bcd", .token = 3}});
  EXPECT_THAT(sections(tokens, "xabcdab"), ElementsAre("x", "<2:abc>", "d", "<1:ab>"));
  EXPECT_THAT(sections(tokens, "bcd"), ElementsAre("<3:bcd>"));
  EXPECT_THAT(sections(AddedTokens(), "x"), ElementsAre("x"));
}

TEST(AddedTokens, TakeWhiteSpaceAndStandAlone) {
  const AddedTokens strips({{.content = "x", .token = 1, .strips_left = true, .strips_right = true}});
  EXPECT_THAT(sections(strips, "a \u2003x\n x b"), ElementsAre("a", "<1: \u2003x\n >", "<1:x >", "b"));
  const AddedTokens single({{.content = "x", .token = 1, .single_word = true}});
  EXPECT_THAT(sections(single, "ax x xé x"), ElementsAre("ax ", "<1:x>", " xé ", "<1:x>"));
}

TEST(AddedTokens, SpecialOnesAreTextUnlessTheyAreLookedFor) {
  const std::vector<AddedToken> tokens = {{.content = "<s>", .token = 1, .is_special = true},
                                          {.content = "<t>", .token = 2}};
  EXPECT_THAT(sections(AddedTokens(tokens), "<s><t>"), ElementsAre("<s>", "<2:<t>>"));
  EXPECT_THAT(sections(AddedTokens(tokens, true), "<s><t>"), ElementsAre("<1:<s>>", "<2:<t>>"));
}

TEST(PrefixTrie, FindsTheLongestWord) {
  const PrefixTrie trie({{"a", 0}, {"abc", 1}, {"\xff", 2}, {"", 3}, {"a", 4}});
  EXPECT_EQ(trie.longest("abcd").value, 1);
  EXPECT_EQ(trie.longest("abd").length, 1U);
  EXPECT_EQ(trie.longest("abd").value, 0) << "of equal words the first";
  EXPECT_EQ(trie.longest("\xff").value, 2);
  EXPECT_EQ(trie.longest("b").length, 0U);
  EXPECT_TRUE(PrefixTrie().empty());
}

TEST(WordCache, RemembersTheTokensOfEachWord) {
  WordCache cache;
  std::map<std::string, std::vector<std::int32_t>> expected;
  std::mt19937 random(5);
  for (int i = 0; i < 30000; ++i) {
    std::string word(1 + random() % 20, '\0');
    for (char& c : word) c = static_cast<char>("\0ab"[random() % 3]);
    const auto found = cache.find(word);
    ASSERT_EQ(found.has_value(), expected.contains(word));
    if (found) {
      ASSERT_EQ(std::vector<std::int32_t>(found->begin(), found->end()), expected[word]);
      continue;
    }
    expected[word] = std::vector<std::int32_t>(random() % 4, i);
    cache.insert(word, expected[word]);
  }
  const std::string long_word(65, 'a');
  cache.insert(long_word, std::vector<std::int32_t>{1});
  EXPECT_FALSE(cache.find(long_word));
}

}  // namespace
}  // namespace apps::text_tests
#endif
