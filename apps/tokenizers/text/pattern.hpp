#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace apps {

// A regular expression that finds pieces of a text, run by PCRE2. Tokenizers' patterns are written for other engines: \s is
// Unicode's White_Space here as there, and parts whose meaning differs between them are refused.
//
// Classes of characters are those of Unicode 14 (PCRE2 10.42); a tokenizer of another version may cut characters differently
// that only one of the two knows.
class Pattern {
 public:
  enum class Lines {
    one,   // $ is the text's end (Rust: tiktoken)
    many,  // $ is also each line's end (Oniguruma: tokenizers)
  };
  // Throws Error(invalid_argument), which names the pattern, where it is none or has a part that is refused.
  explicit Pattern(const std::string& text, Lines lines = Lines::one);

  struct Match {
    std::size_t begin, end;
  };
  // The first match that begins at `at` or behind it and is not empty. The text must be valid UTF-8.
  std::optional<Match> find(std::string_view text, std::size_t at) const;

 private:
  struct Compiled;
  std::shared_ptr<Compiled> compiled_;
};

// The text itself as a pattern.
std::string quoted_pattern(std::string_view text);

}  // namespace apps
