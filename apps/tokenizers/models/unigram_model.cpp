#include "apps/tokenizers/models/unigram_model.hpp"

#include <algorithm>

#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

constexpr float unknown_penalty = 10;  // sentencepiece's kUnkPenalty

// In place of a score, which is below 0: the longest one counts. So sentencepiece 0.2.3; older ones had another formula.
float bonus(std::size_t length) { return 0.1F * static_cast<float>(length - 1); }

PrefixTrie trie_of(const UnigramPieces& pieces) {
  std::vector<PrefixTrie::Word> words;
  for (std::size_t i = 0; i < pieces.texts.size(); ++i) {
    if (pieces.can_be_used[i]) words.push_back({pieces.texts[i], static_cast<std::int32_t>(i)});
  }
  return PrefixTrie(std::move(words));
}

}  // namespace

UnigramModel::UnigramModel(UnigramPieces pieces) : pieces_(std::move(pieces)), trie_(trie_of(pieces_)) {}

// Scores are added in float, as in sentencepiece, so that ways of equal likelihood compare as there.
void UnigramModel::extend(std::string_view text, std::size_t at) {
  const auto begin = static_cast<std::ptrdiff_t>(at);
  const float till_here = best_[at].score;
  const auto offer = [&](std::size_t length, float score, std::int32_t token) {
    Best& best = best_[at + length];
    if (best.begin < 0 || score > best.score) best = {score, token, begin};
  };
  const std::size_t one = std::max<std::size_t>(1, character_length(text.substr(at)));
  bool has_one = false;
  std::int32_t node = PrefixTrie::root;
  for (std::size_t length = 1; at + length <= text.size(); ++length) {
    node = trie_.child(node, static_cast<unsigned char>(text[at + length - 1]));
    if (node == PrefixTrie::nowhere) break;
    const std::int32_t token = trie_.value(node);
    if (token < 0) continue;
    const auto index = static_cast<std::size_t>(token);
    const float score = pieces_.user_defined[index] ? bonus(length) : pieces_.scores[index];
    offer(length, score + till_here, token);
    has_one = has_one || length == one;
  }
  if (!has_one) offer(one, pieces_.smallest - unknown_penalty + till_here, -1);
}

std::span<const std::int32_t> UnigramModel::tokens_of(std::string_view text) {
  best_.assign(text.size() + 1, {});
  for (std::size_t at = 0; at < text.size(); at += std::max<std::size_t>(1, character_length(text.substr(at)))) {
    extend(text, at);
  }
  std::vector<std::size_t> ends;
  for (std::size_t end = text.size(); end > 0; end = static_cast<std::size_t>(best_[end].begin)) ends.push_back(end);
  tokens_.clear();
  for (auto end = ends.rbegin(); end != ends.rend(); ++end) {
    const auto& [score, token, begin] = best_[*end];
    if (token >= 0) {
      tokens_.push_back(token);
    } else {
      pieces_.unknown.append(text.substr(static_cast<std::size_t>(begin), *end - static_cast<std::size_t>(begin)), tokens_);
    }
  }
  return tokens_;
}

}  // namespace apps
