#pragma once
#include <string>
#include <string_view>

namespace apps {

// One of Unicode's normalization forms, by utf8proc (2.8: Unicode 15).
class UnicodeForm {
 public:
  // NFC, NFD, NFKC or NFKD. Throws Error(invalid_argument) for another name, and where the build is without utf8proc.
  explicit UnicodeForm(const std::string& name);
  // The text must be valid UTF-8.
  std::string of(std::string_view text) const;

 private:
  int options_ = 0;
  bool composes_ = false;
};

}  // namespace apps
