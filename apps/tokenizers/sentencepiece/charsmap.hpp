#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apps {

// sentencepiece's precompiled_charsmap: which beginning of a text becomes what (nmt_nfkc and the like). It is the size of a
// double-array trie (darts-clone's), the trie, and the texts that its values point at, each of which ends with a NUL.
class Charsmap {
 public:
  // Throws Error(io), which names the file, for bytes that are no such map.
  Charsmap(std::string_view bytes, const std::string& path);

  struct Found {
    std::string_view replacement;
    std::size_t length = 0;  // of the text that it replaces; 0: none
  };
  // The longest beginning of the text that is replaced.
  Found longest(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace apps
