#pragma once
#include <cstddef>
#include <memory>
#include <string_view>

namespace apps {

// Cuts a text into the pieces that GPT-2 encodes one by one: contractions, words, numbers and other characters, each with
// the space before it, and white space. A byte that belongs to no valid UTF-8 character is a piece of its own.
//
// Classes of characters are those of Unicode 14 (PCRE2 10.42); a tokenizer of another version may cut characters differently
// that only one of the two knows.
class Pieces {
 public:
  // The text must outlive the object.
  explicit Pieces(std::string_view text);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // The next piece; empty at the end.
  std::string_view next();

 private:
  struct Matcher;
  std::unique_ptr<Matcher> matcher_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t valid_end_ = 0;  // up to here the text is known to be valid UTF-8 from at_ on
};

}  // namespace apps
