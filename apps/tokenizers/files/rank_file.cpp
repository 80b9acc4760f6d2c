#include "apps/tokenizers/files/rank_file.hpp"

#include <algorithm>
#include <charconv>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/families.hpp"
#include "apps/tokenizers/models/bpe_model.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

int value_of_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// The bytes of base64 with its padding; none for what is no base64.
std::optional<std::string> from_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(padding);
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int digit = value_of_digit(c);
    if (digit < 0) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xff);
  }
  return bytes;
}

struct Line {
  std::optional<std::string> bytes;
  std::int32_t rank = -1;  // -1: none
};

Line parse_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t space = std::min(line.find(' '), line.size());
  Line result{from_base64(line.substr(0, space))};
  const std::string_view number = line.substr(std::min(space + 1, line.size()));
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), result.rank);
  if (error != std::errc() || end != number.data() + number.size()) result.rank = -1;
  return result;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

// The bytes of each token, by rank.
std::vector<std::string> read_lines(const std::string& path, std::string_view text) {
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n')) + 1;
  std::vector<std::string> tokens;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = first_line(text);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.empty()) continue;
    Line parsed = parse_line(line);
    if (!parsed.bytes || parsed.bytes->empty() || parsed.rank < 0) {
      fail(ErrorCode::io, "Line {} of {} is not a token in base64, a space and a rank.", number, path);
    }
    const auto rank = static_cast<std::size_t>(parsed.rank);
    if (rank >= lines) {
      fail(ErrorCode::io, "Line {} of {} has the rank {}, but {} lines need the ranks from 0 on.", number, path, rank,
           lines);
    }
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    if (!tokens[rank].empty()) fail(ErrorCode::io, "Line {} of {} has the rank {} for the second time.", number, path, rank);
    tokens[rank] = std::move(*parsed.bytes);
  }
  const auto missing = std::ranges::find(tokens, "");
  if (missing != tokens.end()) {
    fail(ErrorCode::io, "{} lacks the rank {}, though it has {}.", path, missing - tokens.begin(), tokens.size() - 1);
  }
  return tokens;
}

const RankFamily& family_of(const std::string& path, const std::string& name) {
  std::vector<std::string> names;
  for (const RankFamily& family : rank_families()) {
    if (family.name == name) return family;
    names.push_back(family.name);
  }
  require(!name.empty(),
          "{} is a file of tiktoken's ranks, which does not say how texts are cut; give --tokenizer-pattern {}.", path,
          fmt::join(names, ", or "));
  fail(ErrorCode::invalid_argument, "--tokenizer-pattern '{}' is unknown; give {}.", name, fmt::join(names, ", or "));
}

}  // namespace

bool looks_like_ranks(std::string_view text) {
  const Line line = parse_line(first_line(text));
  return line.bytes && line.rank >= 0;
}

TokenizerParts read_ranks(const std::string& path, std::string_view text, const std::string& family_name) {
  const RankFamily& family = family_of(path, family_name);
  TokenizerParts parts;
  parts.description = fmt::format("tiktoken's ranks, cut as {}", family.name);
  parts.texts = read_lines(path, text);
  BpeRules rules;
  rules.tokens = static_cast<std::int32_t>(parts.texts.size());
  rules.unknown.bytes.assign(256, -1);
  std::vector<std::int32_t> ranks;
  for (std::int32_t rank = 0; rank < rules.tokens; ++rank) {
    const std::string& token = parts.texts[static_cast<std::size_t>(rank)];
    if (token.size() == 1) rules.unknown.bytes[static_cast<unsigned char>(token.front())] = rank;
    if (!rules.whole.emplace(token, rank).second) fail(ErrorCode::io, "{} has the token of rank {} twice.", path, rank);
    ranks.push_back(rank);
  }
  const auto missing = std::ranges::find(rules.unknown.bytes, -1);
  if (missing != rules.unknown.bytes.end()) {
    fail(ErrorCode::io, "{} has no token of the byte {:#04x} alone.", path, missing - rules.unknown.bytes.begin());
  }
  add_merges_of_parts(rules, parts.texts, ranks);
  for (const auto& [content, behind] : family.special) {
    const std::int32_t token = rules.tokens + behind;
    parts.texts.resize(static_cast<std::size_t>(token) + 1);
    parts.texts.back() = content;
    parts.added.push_back({.content = content, .token = token, .is_special = true});
    if (content == family.beginning) parts.beginning = token;
    if (content == family.end) parts.end = token;
  }
  if (family.normalizes) parts.normalizer.unicode_form("NFC");
  parts.splitter.split_at(Pattern(family.pattern));
  parts.model = std::make_unique<BpeModel>(std::move(rules));
  return parts;
}

}  // namespace apps
