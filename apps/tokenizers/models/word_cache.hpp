#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace apps {

// The tokens of words that were encoded before: a text has few different ones. Long words are not kept, nor more than a
// million; then it begins anew.
class WordCache {
 public:
  WordCache();
  // They stay until the next insert().
  std::optional<std::span<const std::int32_t>> find(std::string_view word) const;
  // A word that find() did not find.
  void insert(std::string_view word, std::span<const std::int32_t> tokens);

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t text = 0, tokens = 0;   // where they begin
    std::uint16_t length = 0, count = 0;  // length 0: the entry is free
  };
  std::size_t place_of(std::string_view word, std::uint64_t hash) const;
  void grow();

  std::vector<Entry> entries_;  // a power of two, at most half of them taken
  std::size_t taken_ = 0;
  std::string texts_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace apps
