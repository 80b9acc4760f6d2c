#pragma once
#include <charconv>
#include <sstream>
#include <string>
#include <vector>

#include "core/fail.hpp"

namespace stretto {

// The words of a line, which blanks separate.
inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> found;
  for (std::string word; stream >> word;) found.push_back(word);
  return found;
}

// Whether a name consists of letters, digits, -, _ and ., so that it is one word.
inline bool is_plain_name(const std::string& name) {
  return !name.empty() &&
         name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string::npos;
}

// Reads a text line by line, without what follows a #, and without lines that say nothing. All functions throw
// Error(invalid_argument), with the line's number, for what they cannot read.
class TextLines {
 public:
  // what: the kind of text, for sentences.
  TextLines(const std::string& text, std::string what) : stream_(text), what_(std::move(what)) {}

  bool next() {
    while (std::getline(stream_, line_)) {
      ++number_;
      line_ = line_.substr(0, line_.find('#'));
      if (!words_of(line_).empty()) return true;
    }
    return false;
  }
  const std::string& line() const { return line_; }

  // The value of a line "key value", which must come next.
  std::string value(const char* key) {
    require(next(), "The {} ends where '{}' is expected, behind line {}.", what_, key, number_);
    const auto both = words_of(line_);
    demand(both.size() == 2 && both[0] == key, fmt::format("'{}' and its value are expected", key));
    return both[1];
  }
  template <class Number>
  Number number(const std::string& word) const {
    Number value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    demand(error == std::errc() && end == word.data() + word.size(), fmt::format("'{}' is no number", word.substr(0, 40)));
    return value;
  }
  void demand(bool holds, const std::string& why) const {
    require(holds, "Line {} of the {} cannot be read: {}.", number_, what_, why);
  }

 private:
  std::istringstream stream_;
  std::string what_;
  std::string line_;
  int number_ = 0;
};

}  // namespace stretto
