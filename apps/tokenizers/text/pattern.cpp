#include "apps/tokenizers/text/pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

constexpr std::size_t first_stack = 32 << 10, largest_stack = 4 << 20;
constexpr std::uint32_t most_steps = 10'000'000;  // of one match: an expression may take exponential time

// The expression as PCRE2 writes it. By \s PCRE2 also understands U+180E, and by \p{Han} also characters that several
// scripts share; it knows neither sets within sets nor the word characters of the others.
class Translation {
 public:
  explicit Translation(const std::string& text) : text_(text) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\\') {
        escape();
        continue;
      }
      if (in_set_ && (c == '[' || text_.compare(at_ - 1, 2, "&&") == 0)) refuse(c == '[' ? "[ within [ ]" : "&&");
      if (c == '[') {
        in_set_ = true;
        result_ += c;
        for (const char also : {'^', ']'}) {  // a ] that comes first closes nothing
          if (at_ < text_.size() && text_[at_] == also) result_ += text_[at_++];
        }
        continue;
      }
      if (c == ']') in_set_ = false;
      result_ += c;
    }
  }

  std::string take() { return std::move(result_); }

 private:
  void escape() {
    const char c = at_ < text_.size() ? text_[at_++] : '\0';
    switch (c) {
      case 's': result_ += "\\p{White_Space}"; break;
      case 'S': result_ += "\\P{White_Space}"; break;
      case 'p':
      case 'P': property(c); break;
      case 'w':
      case 'W':
      case 'b':
      case 'B':
      case 'h':
      case 'H':
      case 'X': refuse(std::string("\\") + c); break;
      default:
        result_ += '\\';
        if (c != '\0') result_ += c;
    }
  }

  void property(char letter) {
    result_ += std::string("\\") + letter;
    const std::size_t end = text_.find('}', at_);
    if (at_ == text_.size() || text_[at_] != '{' || end == std::string::npos) return;
    std::string name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const std::string_view negation = name.starts_with('^') ? "^" : "";
    name.erase(0, negation.size());
    const bool is_category = name.size() <= 2 || name == "L&" || name == "White_Space" || name == "Alphabetic";
    result_ += fmt::format("{{{}{}{}}}", negation, is_category ? "" : "sc:", name);
  }

  [[noreturn]] void refuse(const std::string& part) const {
    fail(ErrorCode::invalid_argument, "The pattern '{}' has {}, whose meaning differs from engine to engine.", text_, part);
  }

  const std::string& text_;
  std::string result_;
  std::size_t at_ = 0;
  bool in_set_ = false;
};

pcre2_code* compile(const std::string& text, Pattern::Lines lines) {
  const std::string translated = Translation(text).take();
  const std::uint32_t ends = lines == Pattern::Lines::many ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  int error = 0;
  std::size_t offset = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | ends, &error, &offset, nullptr);
  if (code == nullptr) {
    char reason[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
    fail(ErrorCode::invalid_argument, "PCRE2 does not take the pattern '{}': {} at {}.", text, reason, offset);
  }
  return code;
}

}  // namespace

struct Pattern::Compiled {
  Compiled(const std::string& text, Lines lines)
      : code(compile(text, lines), pcre2_code_free),
        found(pcre2_match_data_create(1, nullptr), pcre2_match_data_free),
        context(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
    pcre2_set_match_limit(context.get(), most_steps);
    if (pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) != 0) return;  // without it, matching is slower
    stack = {pcre2_jit_stack_create(first_stack, largest_stack, nullptr), pcre2_jit_stack_free};
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    match = pcre2_jit_match;
  }

  std::shared_ptr<pcre2_code> code;
  std::shared_ptr<pcre2_match_data> found;
  std::shared_ptr<pcre2_match_context> context;
  std::shared_ptr<pcre2_jit_stack> stack;
  decltype(&pcre2_match) match = pcre2_match;
};

Pattern::Pattern(const std::string& text, Lines lines) : compiled_(std::make_shared<Compiled>(text, lines)) {}

std::optional<Pattern::Match> Pattern::find(std::string_view text, std::size_t at) const {
  while (at < text.size()) {
    const int result = compiled_->match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                        PCRE2_NO_UTF_CHECK, compiled_->found.get(), compiled_->context.get());
    if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (result < 0) {
      fail(ErrorCode::invalid_argument, "The tokenizer's pattern gives up at byte {} of a text (PCRE2's error {}).", at,
           result);
    }
    const std::size_t* const ends = pcre2_get_ovector_pointer(compiled_->found.get());
    if (ends[0] < ends[1]) return Match{ends[0], ends[1]};
    at = std::max(at, ends[0]);  // \K may put a match's beginning behind its end
    at += character_length(text.substr(at));
  }
  return std::nullopt;
}

std::string quoted_pattern(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const bool is_plain = c == '\0' || static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                          (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!is_plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace apps
