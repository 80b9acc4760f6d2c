// The contents of a file tell its kind of tokenizer; the tokenizers of bytes and of numbers need no file.
#include <gmock/gmock.h>

#include "apps/tokenizers/tokenizer.hpp"
#include "stretto/error.hpp"
#ifdef STRETTO_HAVE_PCRE2
#include "apps/tokenizers/read_tokenizer.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"
#endif

namespace apps::read_tokenizer_tests {
namespace {

using testing::ElementsAre;

TEST(ByteTokenizer, TakesEachByteForAToken) {
  ByteTokenizer tokenizer;
  EXPECT_THAT(tokenizer.encode("a\xff"), ElementsAre('a', 0xff));
  EXPECT_EQ(tokenizer.decode({'a', 0xff}), "a\xff");
  EXPECT_EQ(tokenizer.separator(), std::nullopt);
}

TEST(NumberTokenizer, TakesNumbersForTokens) {
  NumberTokenizer tokenizer(300);
  EXPECT_THAT(tokenizer.encode("7 299"), ElementsAre(7, 299));
  EXPECT_EQ(tokenizer.decode({7, 299}), "7 299");
  EXPECT_THROW(tokenizer.encode("300"), stretto::Error);
  EXPECT_THROW(tokenizer.encode("x"), stretto::Error);
}

#ifdef STRETTO_HAVE_PCRE2
using stretto::sentence_of;
using testing::HasSubstr;

TEST(ReadTokenizer, KnowsAFileByItsContents) {
  const stretto::TemporaryDirectory directory;
  const auto sentence = [&](const std::string& contents, const TokenizerOptions& options = {}) {
    const std::string path = directory.write("file", contents);
    const std::string text = sentence_of([&] { read_tokenizer(path, options); });
    EXPECT_THAT(text, HasSubstr("file")) << contents;
    return text;
  };
  EXPECT_THAT(sentence("{}"), HasSubstr("no tokenizer.json"));
  EXPECT_THAT(sentence("  {\"model\": 5"), HasSubstr("no JSON object"));
  EXPECT_THAT(sentence("QQ== 0\n"), HasSubstr("tiktoken's ranks"));
  EXPECT_THAT(sentence("QQ== 0\n", {.pattern = "gpt2"}), HasSubstr("byte 0x00"));
  EXPECT_THAT(sentence("\n\x05\n\x03"
                       "abc"),
              HasSubstr("no piece for what is unknown"));
  EXPECT_THAT(sentence("a text"), HasSubstr("no tokenizer: neither"));
  EXPECT_THAT(sentence("{}", {.pattern = "gpt2"}), HasSubstr("leave it out"));
}

TEST(ReadTokenizer, TakesADirectory) {
  const stretto::TemporaryDirectory directory;
  const auto sentence = [&] { return sentence_of([&] { read_tokenizer(directory.path()); }); };
  EXPECT_THAT(sentence(), HasSubstr("has neither tokenizer.json nor tokenizer.model"));
  directory.write("vocab.json", "{}");
  directory.write("merges.txt", "");
  EXPECT_THAT(sentence(), HasSubstr("vocab.json is no vocabulary"));
  EXPECT_EQ(files_of_tokenizer(directory.path()).size(), 2U);
  directory.write("tokenizer.json", "{}");
  EXPECT_THAT(sentence(), HasSubstr("no 'model'"));
}
#endif

}  // namespace
}  // namespace apps::read_tokenizer_tests
