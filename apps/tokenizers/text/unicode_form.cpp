#include "apps/tokenizers/text/unicode_form.hpp"

#ifdef STRETTO_HAVE_UTF8PROC
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#endif

#include "apps/common/fail.hpp"

namespace apps {

using stretto::ErrorCode;

#ifdef STRETTO_HAVE_UTF8PROC

UnicodeForm::UnicodeForm(const std::string& name) : composes_(name == "NFC" || name == "NFKC") {
  const bool is_compatible = name == "NFKC" || name == "NFKD";
  require(composes_ || is_compatible || name == "NFD", "{} is no form of Unicode; NFC, NFD, NFKC and NFKD are.", name);
  options_ = UTF8PROC_STABLE | (composes_ ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (is_compatible ? UTF8PROC_COMPAT : 0);
}

std::string UnicodeForm::of(std::string_view text) const {
  // Each form keeps ASCII, and NFC everything below U+0300, where the first mark is that combines.
  const bool is_compatible = (options_ & UTF8PROC_COMPAT) != 0;
  const unsigned char first_changed = composes_ && !is_compatible ? 0xcc : 0x80;
  if (std::ranges::all_of(text, [&](char c) { return static_cast<unsigned char>(c) < first_changed; })) {
    return std::string(text);
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &mapped, static_cast<utf8proc_option_t>(options_));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, std::free);
  if (length < 0) fail(ErrorCode::internal, "utf8proc cannot normalize a text: {}.", utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length)};
}

#else

UnicodeForm::UnicodeForm(const std::string& name) {
  fail(ErrorCode::invalid_argument,
       "The normalizer {} needs utf8proc, and this build is without it; install libutf8proc-dev and build again.", name);
}

std::string UnicodeForm::of(std::string_view text) const { return std::string(text); }

#endif

}  // namespace apps
