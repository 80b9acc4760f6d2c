#include "apps/tokenize/bpe/pieces.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

// OpenAI's pattern (encoder.py). White_Space takes the place of \s, by which PCRE2 also understands U+180E.
constexpr const char* pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+|"
    "\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+";

using Code = std::shared_ptr<pcre2_code>;

Code compiled(const char* text) {
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text), PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                         &error, &offset, nullptr);
  if (code == nullptr) {
    fail(ErrorCode::internal, "PCRE2 does not take the pattern of GPT-2's pieces (error {} at {}); 10.40 or later does.",
         error, offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it, matching is slower
  return {code, pcre2_code_free};
}

// Compiled once; matching does not change it.
const Code& code_of_pieces() {
  static const Code code = compiled(pattern);
  return code;
}

const Code& code_of_nothing() {
  static const Code code = compiled("");
  return code;
}

}  // namespace

struct Pieces::Matcher {
  std::shared_ptr<pcre2_match_data> found{pcre2_match_data_create(1, nullptr), pcre2_match_data_free};

  int match(const Code& code, std::string_view text, std::size_t at, std::uint32_t options) const {
    return pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, options, found.get(),
                       nullptr);
  }

  // The end of the piece that begins at `at`.
  std::size_t end_of_piece(std::string_view text, std::size_t at) const {
    const int result = match(code_of_pieces(), text, at, PCRE2_NO_UTF_CHECK);
    if (result < 1) fail(ErrorCode::internal, "PCRE2 finds no piece at byte {} (error {}).", at, result);
    return pcre2_get_ovector_pointer(found.get())[1];
  }

  // How much of the text's beginning is valid UTF-8: PCRE2 checks all of it before it looks for a match.
  std::size_t valid_length(std::string_view text) const {
    return match(code_of_nothing(), text, 0, PCRE2_NO_JIT) >= 0 ? text.size() : pcre2_get_startchar(found.get());
  }
};

Pieces::Pieces(std::string_view text) : matcher_(std::make_unique<Matcher>()), text_(text) {}

Pieces::~Pieces() = default;

std::string_view Pieces::next() {
  if (at_ == text_.size()) return {};
  if (at_ == valid_end_) valid_end_ = at_ + matcher_->valid_length(text_.substr(at_));
  const std::size_t begin = at_;
  if (at_ == valid_end_) {
    valid_end_ = ++at_;
  } else {
    at_ = matcher_->end_of_piece(text_.substr(0, valid_end_), at_);
  }
  return text_.substr(begin, at_ - begin);
}

}  // namespace apps
