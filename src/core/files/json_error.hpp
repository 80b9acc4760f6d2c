#pragma once
#include <exception>
#include <string>

namespace stretto {

// The reason in an exception of nlohmann, as a part of the caller's sentence. nlohmann's own texts are
// "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing value - ..." and
// "[json.exception.out_of_range.403] key 'a' not found".
inline std::string json_error_text(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t place = text.find("line ");
  if (text.find("parse_error") != std::string::npos && place != std::string::npos) {
    return "it is no JSON at " + text.substr(place, text.find(':', place) - place);
  }
  const std::size_t begin = text.find("] ");
  return begin == std::string::npos ? text : text.substr(begin + 2);
}

}  // namespace stretto
