#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace apps {

// A set of words that finds those with which a text begins.
class PrefixTrie {
 public:
  struct Word {
    std::string text;
    std::int32_t value;  // at least 0
  };
  // The first of equal words counts; empty words are left out.
  explicit PrefixTrie(std::vector<Word> words = {});

  struct Found {
    std::int32_t value = -1;
    std::size_t length = 0;  // 0: none
  };
  Found longest(std::string_view text) const;
  bool begins_with(char byte) const { return child(root, static_cast<unsigned char>(byte)) != nowhere; }
  bool empty() const { return nodes_[root].edges == nodes_[root].edges_end; }

  // A walk from the root along a text's bytes: `nowhere` where no word goes on so.
  static constexpr std::int32_t root = 0, nowhere = -1;
  std::int32_t child(std::int32_t node, unsigned char byte) const {
    if (node == root) return first_[byte];
    for (std::int32_t edge = nodes_[node].edges; edge < nodes_[node].edges_end; ++edge) {
      if (edges_[edge].byte == byte) return edges_[edge].node;
    }
    return nowhere;
  }
  std::int32_t value(std::int32_t node) const { return nodes_[node].value; }  // -1: no word ends here

 private:
  struct Node {
    std::int32_t value, edges, edges_end;
  };
  struct Edge {
    unsigned char byte;
    std::int32_t node;
  };
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::array<std::int32_t, 256> first_;  // the root's children
};

}  // namespace apps
