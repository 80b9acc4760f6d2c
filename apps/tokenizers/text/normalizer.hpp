#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tokenizers/text/pattern.hpp"

namespace apps {

// The steps by which a tokenizer changes a text before it cuts it. Names are those of tokenizers' normalizers.
class Normalizer {
 public:
  using Step = std::function<std::string(std::string)>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  void prepend(const std::string& prefix);  // to a text that is not empty
  void replace(const std::string& found, const std::string& replacement);
  void replace(const Pattern& pattern, const std::string& replacement);
  // A Unicode normalization form: NFC, NFD, NFKC or NFKD. Throws Error(invalid_argument) for another name, and where the
  // build is without utf8proc.
  void unicode_form(const std::string& name);

  bool empty() const { return steps_.empty(); }
  std::string normalized(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace apps
