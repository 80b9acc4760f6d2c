#include "apps/tokenizers/text/normalizer.hpp"

#include <algorithm>

#include "apps/tokenizers/text/unicode_form.hpp"
#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

// The change, of each stretch of valid UTF-8; other bytes stay.
std::string of_valid_stretches(std::string_view text, const std::function<std::string(std::string_view)>& change) {
  std::string result;
  while (!text.empty()) {
    const std::size_t valid = valid_length(text);
    result += change(text.substr(0, valid));
    if (valid < text.size()) result += text[valid];
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
  return result;
}

}  // namespace

void Normalizer::prepend(const std::string& prefix) {
  add([prefix](const std::string& text) { return text.empty() ? text : prefix + text; });
}

void Normalizer::replace(const std::string& found, const std::string& replacement) {
  if (found.empty()) return;
  add([found, replacement](const std::string& text) {
    std::string result;
    std::size_t at = 0;
    for (std::size_t next = text.find(found); next != std::string::npos; next = text.find(found, at)) {
      result.append(text, at, next - at) += replacement;
      at = next + found.size();
    }
    return result.append(text, at);
  });
}

void Normalizer::replace(const Pattern& pattern, const std::string& replacement) {
  add([pattern, replacement](const std::string& text) {
    return of_valid_stretches(text, [&](std::string_view stretch) {
      std::string result;
      std::size_t at = 0;
      for (auto match = pattern.find(stretch, 0); match; match = pattern.find(stretch, at)) {
        result.append(stretch.substr(at, match->begin - at)) += replacement;
        at = match->end;
      }
      return result.append(stretch.substr(at));
    });
  });
}

void Normalizer::unicode_form(const std::string& name) {
  const UnicodeForm form(name);
  add([form](const std::string& text) {
    return of_valid_stretches(text, [&](std::string_view stretch) { return form.of(stretch); });
  });
}

std::string Normalizer::normalized(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) result = step(std::move(result));
  return result;
}

}  // namespace apps
