#include "apps/tokenizers/text/prefix_trie.hpp"

#include <algorithm>

namespace apps {

namespace {

struct Range {  // of sorted words that have `depth` bytes in common
  std::size_t begin, end, depth;
};

}  // namespace

PrefixTrie::PrefixTrie(std::vector<Word> words) : nodes_{{-1, 0, 0}} {
  first_.fill(nowhere);
  std::erase_if(words, [](const Word& word) { return word.text.empty(); });
  std::ranges::stable_sort(words, {}, &Word::text);
  std::vector<Range> ranges = {{0, words.size(), 0}};  // by node
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (begin < end && words[begin].text.size() == depth) nodes_[node].value = words[begin].value;
    while (begin < end && words[begin].text.size() == depth) ++begin;
    nodes_[node].edges = static_cast<std::int32_t>(edges_.size());
    while (begin < end) {
      const char byte = words[begin].text[depth];
      std::size_t next = begin;
      while (next < end && words[next].text[depth] == byte) ++next;
      edges_.push_back({static_cast<unsigned char>(byte), static_cast<std::int32_t>(nodes_.size())});
      nodes_.push_back({-1, 0, 0});
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
    nodes_[node].edges_end = static_cast<std::int32_t>(edges_.size());
  }
  for (std::int32_t edge = 0; edge < nodes_[root].edges_end; ++edge) first_[edges_[edge].byte] = edges_[edge].node;
}

PrefixTrie::Found PrefixTrie::longest(std::string_view text) const {
  Found found;
  std::int32_t node = root;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == nowhere) break;
    if (value(node) >= 0) found = {value(node), i + 1};
  }
  return found;
}

}  // namespace apps
