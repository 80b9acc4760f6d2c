// Windows of a text: the part that they lie in, and their dependence on global numbers only.
#include "text_data.hpp"

#include <gmock/gmock.h>

#include <set>

#include "../temporary_directory.hpp"
#include "stretto/error.hpp"

namespace parity {
namespace {

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

Window training_window(const gpt::TextData& data, std::int64_t number) {
  Window window;
  data.training_window(number, window.tokens.data(), window.targets.data());
  return window;
}

Window validation_window(const gpt::TextData& data, std::int64_t i) {
  Window window;
  data.validation_window(i, window.tokens.data(), window.targets.data());
  return window;
}

TEST(TextData, WindowsLieInTheirPart) {
  const TemporaryDirectory directory;
  const std::string text = text_of(2000);
  const gpt::TextData data(directory.write("text", text), "", sequence, 1);
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

TEST(TextData, WindowsDependOnTheSeedAndTheirNumberOnly) {
  const TemporaryDirectory directory;
  const std::string path = directory.write("text", text_of(20000));
  const gpt::TextData data(path, "", sequence, 1);
  const gpt::TextData same(path, "", sequence, 1);
  const gpt::TextData other(path, "", sequence, 2);
  int different = 0;
  for (std::int64_t number = 100; number-- > 0;) {  // in any order
    EXPECT_EQ(training_window(data, number).tokens, training_window(same, number).tokens);
    different += training_window(data, number).tokens != training_window(other, number).tokens ? 1 : 0;
  }
  EXPECT_GT(different, 90);
}

TEST(TextData, TakesValidationFromAFileOfItsOwn) {
  const TemporaryDirectory directory;
  const std::string validation = text_of(sequence + 1, 100);
  const gpt::TextData data(directory.write("text", text_of(100)), directory.write("other", validation), sequence, 1);
  EXPECT_EQ(data.validation_windows(), 1);
  EXPECT_EQ(validation_window(data, 0).text(), validation);
}

std::string error_of(const std::string& train, const std::string& validation) {
  try {
    const gpt::TextData data(train, validation, sequence, 1);
  } catch (const stretto::Error& error) {
    return error.what();
  }
  return {};
}

TEST(TextData, NamesFilesThatWillNotDo) {
  const TemporaryDirectory directory;
  const std::string good = directory.write("good", text_of(1000));
  const std::string empty = directory.write("empty", "");
  const std::string brief = directory.write("brief", text_of(sequence));
  EXPECT_EQ(error_of(good, ""), "");
  using testing::AllOf;
  using testing::HasSubstr;
  EXPECT_THAT(error_of(directory / "missing", ""), AllOf(HasSubstr("Cannot open"), HasSubstr("missing")));
  EXPECT_THAT(error_of(empty, ""), AllOf(HasSubstr("empty"), HasSubstr(empty)));
  EXPECT_THAT(error_of(brief, good), AllOf(HasSubstr("16 bytes"), HasSubstr("needs 17")));
  EXPECT_THAT(error_of(good, brief), HasSubstr(brief));
  EXPECT_THAT(error_of(directory.write("middling", text_of(100)), ""), HasSubstr("the last tenth of"));
  EXPECT_THAT(error_of(directory.path(), ""), HasSubstr(directory.path()));
}

}  // namespace
}  // namespace parity
