#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace apps {

// GPT-2's files write each byte as one printable character (bytes_to_unicode in OpenAI's encoder.py): the printable ones of
// Latin-1 stand for themselves, the other bytes, in their order, for the characters from 256 on.
class ByteAlphabet {
 public:
  ByteAlphabet();
  // The bytes that a token of the files stands for; none for a token with characters outside the alphabet.
  std::optional<std::string> bytes_of(std::string_view token) const;
  std::string character_of(unsigned char byte) const;

 private:
  std::unordered_map<std::string, char> bytes_;  // by character
};

}  // namespace apps
