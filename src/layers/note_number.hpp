#pragma once
#include <charconv>
#include <map>
#include <string>

#include "core/fail.hpp"

namespace stretto {

// A number among the notes of a checkpoint. Throws Error(io) for a text that is none.
template <class Number>
Number number_of(const std::map<std::string, std::string>& notes, const std::string& name, Number otherwise) {
  const auto found = notes.find(name);
  if (found == notes.end()) return otherwise;
  const std::string& text = found->second;
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::io, "A checkpoint says '{}' for '{}', which is no number; its metadata are damaged.", text, name);
  }
  return number;
}

}  // namespace stretto
