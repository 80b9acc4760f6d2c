#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace apps {

// Turns a piece of text into tokens.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // The tokens stay until the next call.
  virtual std::span<const std::int32_t> tokens_of(std::string_view piece) = 0;
  // How many bytes had no token up to now, and were left out.
  virtual std::int64_t left_out() const = 0;
};

// Text without tokens becomes its bytes' tokens where there are all of them, else the token for the unknown.
struct UnknownText {
  std::vector<std::int32_t> bytes;  // of each of the 256 bytes, -1: none; empty: unknown text is not divided into bytes
  std::optional<std::int32_t> unknown;
  bool fuses = false;  // unknown characters one behind another become one token

  // Whether each of the text's bytes has a token.
  bool has_bytes_of(std::string_view text) const;
  // Appends the text's tokens; none where there are neither bytes nor a token for the unknown.
  void append(std::string_view text, std::vector<std::int32_t>& tokens) const;
};

}  // namespace apps
