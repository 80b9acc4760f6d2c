// Windows of data: the part that they lie in, and their dependence on global numbers only.
#include "apps/train/data/token_data.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "stretto/error.hpp"
#include "support/error.hpp"
#include "support/temporary_directory.hpp"

namespace parity {
namespace {

using stretto::TemporaryDirectory;

constexpr std::int64_t sequence = 16;

// A text in which no window occurs twice within 20000 bytes, so that a window's place can be found.
std::string text_of(std::size_t bytes, int first = 0) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>(i % 2 == 0 ? first + i / 2 / 100 % 100 : i / 2 % 100);
  return text;
}

struct Window {
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(sequence);
  std::vector<std::int32_t> targets = std::vector<std::int32_t>(sequence);
  std::string text() const {
    std::string result(tokens.begin(), tokens.end());
    return result + static_cast<char>(targets.back());
  }
  void expect_shifted() const {
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) EXPECT_EQ(targets[i], tokens[i + 1]);
  }
};

Window training_window(const apps::TokenData& data, std::int64_t number) {
  Window window;
  data.training_window(number, window.tokens.data(), window.targets.data());
  return window;
}

Window validation_window(const apps::TokenData& data, std::int64_t i) {
  Window window;
  data.validation_window(i, window.tokens.data(), window.targets.data());
  return window;
}

TEST(TokenData, WindowsLieInTheirPart) {
  const TemporaryDirectory directory;
  const std::string text = text_of(2000);
  const apps::TokenData data({{directory.write("text", text)}, {}}, 256, sequence, 1);
  std::set<std::size_t> places;
  for (std::int64_t number = 0; number < 5000; ++number) {
    const Window window = training_window(data, number);
    window.expect_shifted();
    const std::size_t place = text.find(window.text());
    ASSERT_NE(place, std::string::npos);
    places.insert(place);
  }
  EXPECT_EQ(*places.begin(), 0U);
  EXPECT_EQ(*places.rbegin(), 1800U - sequence - 1);  // its last target is the last byte of the part
  EXPECT_GT(places.size(), 1500U);

  EXPECT_EQ(data.validation_windows(), 200 / (sequence + 1));
  for (std::int64_t i = 0; i < data.validation_windows(); ++i) {
    const Window window = validation_window(data, i);
    window.expect_shifted();
    const std::size_t place = text.find(window.text());
    ASSERT_NE(place, std::string::npos);
    EXPECT_GE(place, 1800U);
  }
  EXPECT_EQ(text.find(validation_window(data, 0).text()), 1800U);
  EXPECT_EQ(text.find(validation_window(data, data.validation_windows() - 1).text()), 2000U - sequence - 1);
}

TEST(TokenData, WindowsDependOnTheSeedAndTheirNumberOnly) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("text", text_of(20000));
  const apps::TokenData data({{path}, {}}, 256, sequence, 1);
  const apps::TokenData same({{path}, {}}, 256, sequence, 1);
  const apps::TokenData other({{path}, {}}, 256, sequence, 2);
  int different = 0;
  for (std::int64_t number = 100; number-- > 0;) {  // in any order
    EXPECT_EQ(training_window(data, number).tokens, training_window(same, number).tokens);
    different += training_window(data, number).tokens != training_window(other, number).tokens ? 1 : 0;
  }
  EXPECT_GT(different, 90);
}

TEST(TokenData, TakesValidationFromAFileOfItsOwn) {
  const TemporaryDirectory directory;
  const std::string validation = text_of(sequence + 1, 100);
  const apps::TokenData data({{directory.write("text", text_of(100))}, {directory.write("other", validation)}}, 256,
                             sequence, 1);
  EXPECT_EQ(data.validation_windows(), 1);
  EXPECT_EQ(validation_window(data, 0).text(), validation);
}

std::string error_of(const std::vector<std::string>& train, const std::vector<std::string>& validation = {},
                     std::int64_t vocabulary = 256) {
  return stretto::sentence_of([&] { const apps::TokenData data({train, validation}, vocabulary, sequence, 1); });
}

TEST(TokenData, NamesFilesThatWillNotDo) {
  const TemporaryDirectory directory;
  const std::string good = directory.write("good", text_of(1000));
  const std::string empty = directory.write("empty", "");
  const std::string brief = directory.write("brief", text_of(sequence));
  EXPECT_EQ(error_of({good}), "");
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(error_of({directory / "missing"}), AllOf(HasSubstr("Cannot open"), HasSubstr("missing")));
  EXPECT_THAT(error_of({empty}), AllOf(HasSubstr("empty"), HasSubstr(empty)));
  EXPECT_THAT(error_of({brief}, {good}), AllOf(HasSubstr("16 tokens"), HasSubstr("needs 17")));
  EXPECT_THAT(error_of({good}, {brief}), HasSubstr(brief));
  EXPECT_THAT(error_of({directory.write("middling", text_of(100))}), HasSubstr("the last tenth of"));
  EXPECT_THAT(error_of({good}, {}, 255), AllOf(HasSubstr("--vocab-size 255"), HasSubstr("256")));
}

// llm.c's file of count tokens: first, first + 1, ...
std::string counting_tokens(std::int32_t count, int first = 1000) {
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = count;
  std::string file(reinterpret_cast<const char*>(header.data()), 1024);
  for (int i = 0; i < count; ++i) {
    const auto token = static_cast<std::uint16_t>(first + i);
    file.append(reinterpret_cast<const char*>(&token), 2);
  }
  return file;
}

TEST(TokenData, HasWindowsOfTokens) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("tokens.bin", counting_tokens(1000));
  const apps::TokenData data({{path}, {}}, 2000, sequence, 1);
  data.check_first_tokens();
  EXPECT_FALSE(data.is_bytes());
  EXPECT_THAT(data.description(),
              testing::AllOf(testing::HasSubstr("llm.c, 1000 tokens"), testing::HasSubstr("last 100 tokens")));
  for (std::int64_t number = 0; number < 200; ++number) {
    const Window window = training_window(data, number);
    window.expect_shifted();
    EXPECT_GE(window.tokens.front(), 1000);
    EXPECT_LT(window.targets.back(), 1900);
  }
  EXPECT_EQ(validation_window(data, 0).tokens.front(), 1900);
  EXPECT_EQ(validation_window(data, data.validation_windows() - 1).targets.back(), 1999);
}

TEST(TokenData, ChecksTokensFirstAndInEachWindow) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("tokens.bin", counting_tokens(1000));
  const std::string early = directory.write("early.bin", counting_tokens(100));
  const apps::TokenData data({{early}, {path}}, 1999, sequence, 1);
  EXPECT_THAT(stretto::sentence_of([&] { data.check_first_tokens(); }),
              testing::HasSubstr(path + " has the token 1999 at position 999"));
  EXPECT_THAT(stretto::sentence_of([&] { validation_window(data, data.validation_windows() - 1); }),
              testing::HasSubstr("position 999"));
  EXPECT_EQ(stretto::sentence_of([&] { validation_window(data, 0); }), "");
  EXPECT_THAT(error_of({path}, {directory.write("text", text_of(1000))}, 2000), testing::HasSubstr("one kind"));
}

// Files, folders and patterns are the row that one file of all their tokens is, in the order of their names.
TEST(TokenData, TakesManyFilesForOne) {
  const TemporaryDirectory directory;
  const std::string text = text_of(2000);
  const apps::TokenData whole({{directory.write("whole", text)}, {}}, 256, sequence, 1);
  std::filesystem::create_directory(directory / "shards");
  std::vector<std::string> files;
  for (std::size_t i = 0; i < 10; ++i) {
    files.push_back(directory.write(fmt::format("shards/s_{}", i), text.substr(i * 5, i < 9 ? 5 : text.size())));
  }
  directory.write("shards/.hidden", "no data");
  std::ranges::reverse(files);
  for (const std::vector<std::string>& names : {files,
                                                {directory / "shards"},
                                                {directory / "shards/s_*"},
                                                {directory / "shards/s_[5-9]", directory / "shards/s_[0-4]"}}) {
    const apps::TokenData data({names, {}}, 256, sequence, 1);
    for (std::int64_t number = 0; number < 1000; ++number) {
      ASSERT_EQ(training_window(data, number).text(), training_window(whole, number).text()) << names.front();
    }
    EXPECT_EQ(validation_window(data, 3).text(), validation_window(whole, 3).text());
    EXPECT_NE(data.contents().front().value, whole.contents().front().value);
  }
  const apps::TokenData tokens(
      {{directory.write("t_1.bin", counting_tokens(900)), directory.write("t_0.bin", counting_tokens(100, 0))},
       {directory / "t_?.bin"}},
      2000, sequence, 1);
  tokens.check_first_tokens();
  EXPECT_EQ(validation_window(tokens, 0).tokens.front(), 0);
  EXPECT_EQ(validation_window(tokens, tokens.validation_windows() - 1).targets.back(), 1899);
  EXPECT_THAT(tokens.description(), testing::HasSubstr("2 files"));

  using testing::HasSubstr;
  EXPECT_THAT(error_of({directory / "none_*"}), HasSubstr("none_*"));
  EXPECT_THAT(error_of({directory.path() + "/shards", files[3]}), HasSubstr(files[3] + " is named twice"));
  EXPECT_THAT(error_of({directory / "t_0.bin", directory / "whole"}),
              testing::AllOf(HasSubstr("t_0.bin: llm.c"), HasSubstr("whole: bytes")));
  std::filesystem::create_directory(directory / "empty");
  EXPECT_THAT(error_of({directory / "empty"}), HasSubstr(directory / "empty"));
}

// A window of a mixture lies in one row, of each row as many as its weight says.
TEST(TokenData, MixesByWeights) {
  const TemporaryDirectory directory;
  const std::string low = directory.write("low.bin", counting_tokens(500, 0));
  const std::string high = directory.write("high.bin", counting_tokens(600, 1000));
  const auto mixture = [&](const std::vector<std::string>& names) {
    return apps::TokenData({names, {}}, 2000, sequence, 1);
  };
  const apps::TokenData data = mixture({"0.3", low, "0.7", high}), same = mixture({"3", low, "7", high});
  int from_low = 0;
  for (std::int64_t number = 0; number < 2000; ++number) {
    const Window window = training_window(data, number);
    window.expect_shifted();
    ASSERT_EQ(window.tokens.front() < 1000, window.targets.back() < 1000);
    EXPECT_EQ(window.tokens, training_window(same, number).tokens);
    from_low += window.tokens.front() < 1000 ? 1 : 0;
  }
  EXPECT_NEAR(from_low, 600, 100);
  EXPECT_EQ(data.validation_windows(), 50 / (sequence + 1) + 60 / (sequence + 1));  // of each row's last tenth
  EXPECT_EQ(validation_window(data, 0).tokens.front(), 450);
  EXPECT_EQ(validation_window(data, data.validation_windows() - 1).targets.back(), 1599);

  using testing::HasSubstr;
  EXPECT_THAT(error_of({"0.3", low, "0.7"}, {}, 2000), HasSubstr("./0.7"));
  EXPECT_THAT(error_of({low, "0.7", high}, {}, 2000), HasSubstr("./0.7"));
  EXPECT_THAT(error_of({"0", low, "0.7", high}, {}, 2000), HasSubstr("weight 0"));
  EXPECT_THAT(error_of({"1", low, "2", directory.write("text", text_of(1000))}, {}, 2000), HasSubstr("one kind"));
}

// More files than a process may have descriptors.
TEST(TokenData, HasMoreFilesThanDescriptors) {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "many");
  for (int i = 0; i < 1100; ++i) directory.write(fmt::format("many/{:04}", i), std::string(20, static_cast<char>(i % 100)));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit few{.rlim_cur = std::min<rlim_t>(limit.rlim_cur, 1024), .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const apps::TokenData data({{directory / "many"}, {}}, 256, sequence, 1);
  EXPECT_EQ(validation_window(data, data.validation_windows() - 1).targets.back(), 1099 % 100);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace parity
