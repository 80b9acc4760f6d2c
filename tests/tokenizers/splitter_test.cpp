#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenizers/text/splitter.hpp"

#include <gmock/gmock.h>

#include "apps/tokenizers/files/families.hpp"
#include "stretto/error.hpp"

namespace apps::splitter_tests {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> pieces_by(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> result;
  splitter.split(text, true, [&](std::string_view piece) { result.emplace_back(piece); });
  return result;
}

std::vector<std::string> pieces(std::string_view text) {
  Splitter splitter;
  splitter.split_at(Pattern(gpt2_pattern));
  return pieces_by(splitter, text);
}

TEST(Splitter, AreCutAsGpt2CutsThem) {
  EXPECT_THAT(pieces("Hello world's  end, 42nd"), ElementsAre("Hello", " world", "'s", " ", " end", ",", " 42", "nd"));
  EXPECT_THAT(pieces("don't we'll I'D"), ElementsAre("don", "'t", " we", "'ll", " I", "'", "D"));
  EXPECT_THAT(pieces("a \n\n  b\t"), ElementsAre("a", " \n\n ", " b", "\t"));
  EXPECT_THAT(pieces("Größe 東京 ١٢ …"), ElementsAre("Größe", " 東京", " ١٢", " …"));
  // U+00A0 and U+3000 are white space, U+180E is not any more.
  EXPECT_THAT(pieces("a\u00a0b\u3000\u180ec"), ElementsAre("a", "\u00a0", "b", "\u3000", "\u180e", "c"));
  EXPECT_TRUE(pieces("").empty());
  EXPECT_THAT(pieces(std::string("\0a", 2)), ElementsAre(std::string("\0", 1), "a"));
}

TEST(Splitter, AreSingleBytesWhereThereIsNoUtf8) {
  EXPECT_THAT(pieces("ab\xff\xfe cd"), ElementsAre("ab", "\xff", "\xfe", " cd"));
  EXPECT_THAT(pieces("\xe6\x9d"), ElementsAre("\xe6", "\x9d"));                    // the beginning of a character
  EXPECT_THAT(pieces("\xed\xa0\x80x"), ElementsAre("\xed", "\xa0", "\x80", "x"));  // a surrogate
  EXPECT_THAT(pieces("\xc0\x80"), ElementsAre("\xc0", "\x80"));                    // too long
}

std::vector<std::string> split_at_x(Splitter::Behavior behavior, std::string_view text, bool inverts = false) {
  Splitter splitter;
  splitter.split_at(Pattern("x"), behavior, inverts);
  return pieces_by(splitter, text);
}

TEST(Splitter, BehavesAsTokenizersDoes) {
  using Behavior = Splitter::Behavior;
  EXPECT_THAT(split_at_x(Behavior::isolated, "axxb"), ElementsAre("a", "x", "x", "b"));
  EXPECT_THAT(split_at_x(Behavior::removed, "axxb"), ElementsAre("a", "b"));
  EXPECT_THAT(split_at_x(Behavior::removed, "axxb", true), ElementsAre("x", "x"));
  EXPECT_THAT(split_at_x(Behavior::merged_with_previous, "axxb"), ElementsAre("ax", "x", "b"));
  EXPECT_THAT(split_at_x(Behavior::merged_with_next, "axxb"), ElementsAre("a", "x", "xb"));
  EXPECT_THAT(split_at_x(Behavior::contiguous, "axxb"), ElementsAre("a", "xx", "b"));
  EXPECT_THAT(split_at_x(Behavior::isolated, ""), IsEmpty());
}

TEST(Splitter, StepsSeeOnlyThePiecesBeforeThem) {
  Splitter splitter;
  splitter.split_at(Pattern("\\p{N}"));
  splitter.split_at(Pattern(gpt2_pattern));
  // Before a digit, the last of several spaces is no longer left to what follows: it does not see the digit.
  EXPECT_THAT(pieces_by(splitter, "a  12"), ElementsAre("a", "  ", "1", "2"));
  EXPECT_THAT(pieces("a  12"), ElementsAre("a", " ", " 12")) << "the control";
}

TEST(Splitter, PutsSpacesBeforeTexts) {
  const auto metaspace = [](Splitter::Prepend prepend, bool splits, std::string_view text) {
    Splitter splitter;
    splitter.split_at(Pattern("x"), Splitter::Behavior::removed);
    splitter.metaspace("_", prepend, splits);
    return pieces_by(splitter, text);
  };
  EXPECT_THAT(metaspace(Splitter::Prepend::always, true, "a  bxc"), ElementsAre("_a", "_", "_b", "_c"));
  EXPECT_THAT(metaspace(Splitter::Prepend::first, true, "a bxc"), ElementsAre("_a", "_b", "c"));
  EXPECT_THAT(metaspace(Splitter::Prepend::never, false, "a bxc"), ElementsAre("a_b", "c"));
  EXPECT_THAT(metaspace(Splitter::Prepend::always, true, " a"), ElementsAre("_a")) << "there is one already";
  Splitter splitter;
  splitter.prefix_space();
  EXPECT_THAT(pieces_by(splitter, "a"), ElementsAre(" a"));
  EXPECT_THAT(pieces_by(splitter, " a"), ElementsAre(" a"));
}

TEST(Splitter, CutsBeforeMarkersThatFollowSomethingElse) {
  Splitter splitter;
  splitter.cut_words("_");
  EXPECT_THAT(pieces_by(splitter, "a__b_c_"), ElementsAre("a", "__b", "_c", "_"));
  EXPECT_THAT(pieces_by(splitter, "__a"), ElementsAre("__a"));
}

TEST(Pattern, MeansByClassesWhatOtherEnginesMean) {
  EXPECT_FALSE(Pattern("\\s").find("\u180e", 0)) << "PCRE2 by itself takes U+180E for white space";
  EXPECT_TRUE(Pattern("[\\s]").find("\u2028", 0));
  EXPECT_TRUE(Pattern("'(?i:s)").find("'\u017f", 0));
  EXPECT_FALSE(Pattern("a$").find("a\n", 0));
  EXPECT_TRUE(Pattern("a$", Pattern::Lines::many).find("a\nb", 0));
  EXPECT_EQ(Pattern("x*").find("aax", 0)->begin, 2U) << "empty matches are none";
  const std::string literal("a.[\0\\", 5);
  EXPECT_TRUE(Pattern(quoted_pattern(literal)).find(literal, 0));
  EXPECT_FALSE(Pattern(quoted_pattern(".")).find("a", 0));
}

TEST(Pattern, RefusesWhatEnginesUnderstandDifferently) {
  for (const char* text : {"(", "\\w+", "[a-z&&[aeiou]]", "[[:alpha:]]", "\\h", "\\bx", "\\p{Nonsense}", "\\"}) {
    EXPECT_THROW(Pattern{text}, stretto::Error) << text;
  }
  // It gives up instead of taking exponential time.
  EXPECT_THROW(Pattern("(a+)+b").find(std::string(40, 'a') + "cb", 0), stretto::Error);
}

}  // namespace
}  // namespace apps::splitter_tests
#endif
