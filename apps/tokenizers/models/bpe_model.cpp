#include "apps/tokenizers/models/bpe_model.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

constexpr std::size_t nowhere = ~std::size_t{0};
constexpr std::int32_t unknown_symbol = -1;

std::uint64_t key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

// The character with which the text begins, or the byte that belongs to none.
std::string_view next_character(std::string_view text) {
  return text.substr(0, std::max<std::size_t>(1, character_length(text)));
}

}  // namespace

struct BpeModel::Symbol {  // of a piece while it is merged
  std::int32_t symbol;
  std::size_t previous, next;  // none: `nowhere`
  std::size_t begin, length;
  bool is_frozen = false;
};

struct BpeModel::Candidate {  // a pair that a rule merges
  std::int32_t rank;
  std::size_t at;
  std::int32_t left, right, result;
  bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
};

BpeModel::BpeModel(BpeRules rules) : rules_(std::move(rules)) {
  merges_.reserve(rules_.merges.size());
  for (const BpeRules::Merge& merge : rules_.merges) {  // of two rules for a pair the later counts, as in tokenizers
    merges_[key(merge.left, merge.right)] = {merge.rank, merge.result};
  }
  rules_.merges = {};
}

std::span<const std::int32_t> BpeModel::tokens_of(std::string_view piece) {
  if (const auto found = cache_.find(piece)) return *found;
  const std::int64_t left_out = left_out_;
  const auto whole = rules_.whole.empty() ? rules_.whole.end() : rules_.whole.find(std::string(piece));
  if (whole != rules_.whole.end()) {
    merged_ = {whole->second};
  } else {
    merge(piece);
  }
  if (left_out_ == left_out) cache_.insert(piece, merged_);  // else it is counted again when it comes again
  return merged_;
}

std::int32_t BpeModel::symbol_of(std::string_view character) const {
  if (rules_.begins_with_bytes) return rules_.unknown.bytes[static_cast<unsigned char>(character.front())];
  const auto found = rules_.characters.find(std::string(character));
  return found == rules_.characters.end() ? unknown_symbol : found->second;
}

// A character without a token becomes its bytes or a symbol that nothing merges with. Where there is no token for the
// unknown it is left out before its neighbours are merged, as in tokenizers (SmolLM2 has no token for some control
// characters).
std::vector<BpeModel::Symbol> BpeModel::symbols_of(std::string_view piece) {
  std::vector<Symbol> symbols;
  const auto add = [&](std::int32_t symbol, std::size_t at, std::size_t length, bool is_frozen = false) {
    symbols.push_back({symbol, symbols.size() - 1, symbols.size() + 1, at, length, is_frozen});
  };
  for (std::size_t at = 0, length = 0; at < piece.size(); at += length) {
    const PrefixTrie::Found frozen = rules_.frozen.longest(piece.substr(at));
    if (frozen.length > 0) {
      length = frozen.length;
      add(frozen.value, at, length, true);
      continue;
    }
    const std::string_view character = rules_.begins_with_bytes ? piece.substr(at, 1) : next_character(piece.substr(at));
    length = character.size();
    const std::int32_t symbol = symbol_of(character);
    if (symbol != unknown_symbol || (rules_.unknown.unknown && !rules_.unknown.has_bytes_of(character))) {
      add(symbol, at, length);
    } else if (rules_.unknown.has_bytes_of(character)) {
      for (std::size_t i = at; i < at + length; ++i) add(rules_.unknown.bytes[static_cast<unsigned char>(piece[i])], i, 1);
    } else {
      left_out_ += static_cast<std::int64_t>(length);
    }
  }
  if (!symbols.empty()) symbols.back().next = nowhere;
  return symbols;
}

void BpeModel::merge(std::string_view piece) {
  merged_.clear();
  parts_.clear();
  std::vector<Symbol> symbols = symbols_of(piece);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t at) {
    if (at == nowhere || symbols[at].next == nowhere) return;
    const Symbol &left = symbols[at], &right = symbols[left.next];
    if (left.is_frozen || right.is_frozen || left.symbol < 0 || right.symbol < 0) return;
    const auto rule = merges_.find(key(left.symbol, right.symbol));
    if (rule == merges_.end()) return;
    const auto [rank, result] = rule->second;
    candidates.push({rank, at, left.symbol, right.symbol, result});
    if (!rules_.unused.empty() && rules_.unused[static_cast<std::size_t>(result)]) {
      parts_[result] = {left.symbol, right.symbol};
    }
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& symbol = symbols[best.at];
    // Another pair may have taken one of the two in the meantime.
    if (symbol.symbol != best.left || symbol.next == nowhere || symbols[symbol.next].symbol != best.right) continue;
    Symbol& taken = symbols[symbol.next];
    symbol.symbol = best.result;
    symbol.next = taken.next;
    symbol.length += taken.length;
    if (taken.next != nowhere) symbols[taken.next].previous = best.at;
    taken = {unknown_symbol, nowhere, nowhere, 0, 0};
    consider(symbol.previous);
    consider(best.at);
  }
  for (std::size_t at = symbols.empty() ? nowhere : 0; at != nowhere; at = symbols[at].next) append(piece, symbols[at]);
}

void BpeModel::append(std::string_view piece, const Symbol& symbol) {
  if (symbol.symbol < 0 || symbol.symbol >= rules_.tokens) {
    rules_.unknown.append(piece.substr(symbol.begin, symbol.length), merged_);
  } else if (parts_.empty()) {
    merged_.push_back(symbol.symbol);
  } else {
    append_unused(symbol.symbol, 0);
  }
}

void BpeModel::append_unused(std::int32_t token, int depth) {
  const auto parts = parts_.find(token);
  if (parts == parts_.end() || depth > 100) {
    merged_.push_back(token);
    return;
  }
  const auto [left, right] = parts->second;
  append_unused(left, depth + 1);
  append_unused(right, depth + 1);
}

void add_merges_of_parts(BpeRules& rules, const std::vector<std::string>& texts, const std::vector<std::int32_t>& ranks) {
  std::unordered_map<std::string_view, std::int32_t> symbols;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (ranks[i] >= 0) symbols.emplace(texts[i], static_cast<std::int32_t>(i));
  }
  auto next = static_cast<std::int32_t>(texts.size());
  for (std::size_t i = 0; i < texts.size() && !rules.begins_with_bytes; ++i) {
    if (ranks[i] < 0) continue;
    for (std::string_view rest = texts[i]; !rest.empty();) {
      const std::string_view character = next_character(rest);
      if (symbols.emplace(character, next).second) ++next;
      rules.characters.emplace(character, symbols.at(character));
      rest.remove_prefix(character.size());
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (ranks[i] < 0) continue;
    const std::string_view text = texts[i];
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = symbols.find(text.substr(0, cut));
      const auto right = left == symbols.end() ? left : symbols.find(text.substr(cut));
      if (left == symbols.end() || right == symbols.end()) continue;
      rules.merges.push_back({left->second, right->second, symbols.at(text), ranks[i]});
    }
  }
}

bool keeps_to_words(const BpeRules& rules, const std::vector<std::string>& texts, const std::string& marker) {
  const bool has_tokens = rules.characters.contains(marker) || rules.unknown.has_bytes_of(marker);
  if (!has_tokens || !rules.unused.empty() || !rules.whole.empty() || !rules.frozen.empty()) return false;
  const auto reaches_over = [&](std::string_view text) {
    for (std::size_t at = text.find(marker); at != std::string_view::npos; at = text.find(marker, at + marker.size())) {
      if (at > 0 && !text.substr(0, at).ends_with(marker)) return true;
    }
    return false;
  };
  return std::ranges::none_of(rules.merges, [&](const BpeRules::Merge& merge) {
    return merge.result < rules.tokens && reaches_over(texts[static_cast<std::size_t>(merge.result)]);
  });
}

}  // namespace apps
