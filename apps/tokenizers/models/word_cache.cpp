#include "apps/tokenizers/models/word_cache.hpp"

#include <cstring>

namespace apps {

namespace {

constexpr std::size_t first_entries = 1 << 12, most_words = 1 << 20, longest_word = 64;

std::uint64_t mixed(std::uint64_t bits) {
  bits *= 0x9e3779b97f4a7c15U;
  return bits ^ bits >> 32;
}

// By eight bytes at once; the standard's hash takes longer than to find the word.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t hash = word.size();
  while (!word.empty()) {
    std::uint64_t bits = 0;
    const std::size_t bytes = word.size() < sizeof bits ? word.size() : sizeof bits;
    std::memcpy(&bits, word.data(), bytes);
    hash = mixed(hash ^ bits);
    word.remove_prefix(bytes);
  }
  return mixed(hash);
}

}  // namespace

WordCache::WordCache() : entries_(first_entries) {}

// The word's entry, or the free one that it would take.
std::size_t WordCache::place_of(std::string_view word, std::uint64_t hash) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t place = hash & mask;
  for (; entries_[place].length != 0; place = (place + 1) & mask) {
    const Entry& entry = entries_[place];
    if (entry.hash == hash && std::string_view(texts_).substr(entry.text, entry.length) == word) break;
  }
  return place;
}

std::optional<std::span<const std::int32_t>> WordCache::find(std::string_view word) const {
  if (word.empty() || word.size() > longest_word) return std::nullopt;
  const Entry& entry = entries_[place_of(word, hash_of(word))];
  if (entry.length == 0) return std::nullopt;
  return std::span(tokens_).subspan(entry.tokens, entry.count);
}

void WordCache::insert(std::string_view word, std::span<const std::int32_t> tokens) {
  if (word.empty() || word.size() > longest_word) return;
  if (taken_ == most_words) *this = WordCache();
  if (2 * (taken_ + 1) > entries_.size()) grow();
  const std::uint64_t hash = hash_of(word);
  entries_[place_of(word, hash)] = {hash, static_cast<std::uint32_t>(texts_.size()),
                                    static_cast<std::uint32_t>(tokens_.size()), static_cast<std::uint16_t>(word.size()),
                                    static_cast<std::uint16_t>(tokens.size())};
  ++taken_;
  texts_ += word;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void WordCache::grow() {
  std::vector<Entry> old(2 * entries_.size());
  old.swap(entries_);
  const std::size_t mask = entries_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.length == 0) continue;
    std::size_t place = entry.hash & mask;
    while (entries_[place].length != 0) place = (place + 1) & mask;
    entries_[place] = entry;
  }
}

}  // namespace apps
