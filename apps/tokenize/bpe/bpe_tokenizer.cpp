#include "apps/tokenize/bpe/bpe_tokenizer.hpp"

#include <queue>
#include <tuple>

#include "apps/common/fail.hpp"
#include "apps/tokenize/bpe/pieces.hpp"

namespace apps {

namespace {

// A text has few different pieces; those of a file without words are not worth the memory.
constexpr std::size_t most_cached_pieces = 1 << 20, most_cached_bytes = 64;

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

struct Symbol {  // of a piece while it is merged
  std::int32_t token;
  std::size_t previous, next;  // none: `nowhere`
};
constexpr std::size_t nowhere = ~std::size_t{0};

struct Candidate {  // a pair that a rule merges
  std::int32_t rank;
  std::size_t at;
  std::int32_t left, right, result;
  bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
};

}  // namespace

BpeTokenizer::BpeTokenizer(const std::string& vocabulary_path, const std::string& merges_path)
    : vocabulary_(read_bpe_vocabulary(vocabulary_path, merges_path)) {
  std::int32_t rank = 0;
  for (const BpeVocabulary::Merge& merge : vocabulary_.merges) {
    rules_[key(merge.left, merge.right)] = {rank++, merge.result};
  }
}

std::vector<std::int32_t> BpeTokenizer::encode(const std::string& text) {
  std::vector<std::int32_t> tokens;
  encode(text, [&](std::span<const std::int32_t> piece) { tokens.insert(tokens.end(), piece.begin(), piece.end()); });
  return tokens;
}

void BpeTokenizer::encode(std::string_view text, const std::function<void(std::span<const std::int32_t>)>& take) {
  Pieces pieces(text);
  for (std::string_view piece = pieces.next(); !piece.empty(); piece = pieces.next()) take(tokens_of(piece));
}

std::span<const std::int32_t> BpeTokenizer::tokens_of(std::string_view piece) {
  const auto found = cache_.find(piece);
  if (found != cache_.end()) return std::span(cached_).subspan(found->second.first, found->second.count);
  merge(piece);
  if (piece.size() <= most_cached_bytes) {
    if (cache_.size() == most_cached_pieces) {
      cache_.clear();
      cached_.clear();
    }
    cache_.emplace(piece, Span{cached_.size(), merged_.size()});
    cached_.insert(cached_.end(), merged_.begin(), merged_.end());
  }
  return merged_;
}

// The pair of the lowest rank is merged first, and of equal pairs the leftmost.
void BpeTokenizer::merge(std::string_view piece) {
  std::vector<Symbol> symbols;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    symbols.push_back({vocabulary_.byte_tokens[static_cast<unsigned char>(piece[i])], i - 1, i + 1});
  }
  symbols.back().next = nowhere;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t at) {
    if (at == nowhere || symbols[at].next == nowhere) return;
    const std::int32_t left = symbols[at].token, right = symbols[symbols[at].next].token;
    const auto rule = rules_.find(key(left, right));
    if (rule != rules_.end()) candidates.push({rule->second.rank, at, left, right, rule->second.result});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& symbol = symbols[best.at];
    // Another pair may have taken one of the two in the meantime.
    if (symbol.token != best.left || symbol.next == nowhere || symbols[symbol.next].token != best.right) continue;
    Symbol& taken = symbols[symbol.next];
    symbol.token = best.result;
    symbol.next = taken.next;
    if (taken.next != nowhere) symbols[taken.next].previous = best.at;
    taken = {-1, nowhere, nowhere};
    consider(symbol.previous);
    consider(best.at);
  }
  merged_.clear();
  for (std::size_t at = 0; at != nowhere; at = symbols[at].next) merged_.push_back(symbols[at].token);
}

std::string BpeTokenizer::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    require(token >= 0 && token < size(), "The token {} is none of the vocabulary's {}; they end at {}.", token, size(),
            size() - 1);
    text += vocabulary_.tokens[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace apps
