#include "apps/tokenizers/sentencepiece/sentencepiece_model.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "apps/common/fail.hpp"
#include "apps/tokenizers/files/vocabulary.hpp"
#include "apps/tokenizers/models/bpe_model.hpp"
#include "apps/tokenizers/models/unigram_model.hpp"
#include "apps/tokenizers/sentencepiece/sentencepiece_normalizer.hpp"

namespace apps {

using stretto::ErrorCode;

namespace {

using Piece = SentencePieceModel::Piece;

bool can_be_used(const Piece& piece) {
  return piece.type == SentencePieceModel::normal || piece.type == SentencePieceModel::user_defined;
}

void check(const SentencePieceModel& model, const std::string& path) {
  const auto unknown = std::ranges::find(model.pieces, SentencePieceModel::unknown, &Piece::type);
  if (unknown == model.pieces.end()) fail(ErrorCode::io, "{} has no piece for what is unknown.", path);
  if (model.kind == SentencePieceModel::word || model.kind == SentencePieceModel::character) {
    fail(ErrorCode::io, "{} is a sentencepiece model of {}, which is not served; unigram and bpe are.", path,
         model.kind == SentencePieceModel::word ? "words" : "characters");
  }
  if (model.kind != SentencePieceModel::unigram && model.kind != SentencePieceModel::bpe) {
    fail(ErrorCode::io, "{} is a sentencepiece model of the type {}, which is unknown; 1 (unigram) and 2 (bpe) are served.",
         path, model.kind);
  }
  if (model.puts_spaces_behind) {
    fail(ErrorCode::io, "{} has treat_whitespace_as_suffix, which is not served.", path);
  }
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& [text, score, type] = model.pieces[i];
    if (text.empty()) fail(ErrorCode::io, "{} has no text for piece {}.", path, i);
    if (!std::isfinite(score)) fail(ErrorCode::io, "{} has the score {} for piece {}, '{}'.", path, score, i, text);
    if (type < SentencePieceModel::normal || type > SentencePieceModel::byte) {
      fail(ErrorCode::io, "{} has the type {} for piece {}, '{}'; 1 to 6 are known.", path, type, i, text);
    }
  }
}

// The highest score comes first. Pairs of equal scores have one rank, since the leftmost one is merged first.
std::vector<std::int32_t> ranks_of(const SentencePieceModel& model) {
  std::set<float, std::greater<>> scores;
  const auto takes_part = [](const Piece& piece) {
    return piece.type == SentencePieceModel::normal || piece.type == SentencePieceModel::unused;
  };
  for (const Piece& piece : model.pieces) {
    if (takes_part(piece)) scores.insert(piece.score);
  }
  std::unordered_map<float, std::int32_t> rank_of;
  for (const float score : scores) rank_of.emplace(score, static_cast<std::int32_t>(rank_of.size()));
  std::vector<std::int32_t> ranks;
  for (const Piece& piece : model.pieces) ranks.push_back(takes_part(piece) ? rank_of.at(piece.score) : -1);
  return ranks;
}

PrefixTrie user_defined(const SentencePieceModel& model) {
  std::vector<PrefixTrie::Word> words;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != SentencePieceModel::user_defined) continue;
    words.push_back({model.pieces[i].text, static_cast<std::int32_t>(i)});
  }
  return PrefixTrie(std::move(words));
}

UnknownText unknown_of(const SentencePieceModel& model, const Vocabulary& vocabulary) {
  UnknownText unknown;
  unknown.fuses = true;
  const auto found = std::ranges::find(model.pieces, SentencePieceModel::unknown, &Piece::type);
  unknown.unknown = static_cast<std::int32_t>(found - model.pieces.begin());
  if (!model.has_byte_fallback) return unknown;
  unknown.bytes = named_byte_tokens(vocabulary);
  const auto missing = std::ranges::find(unknown.bytes, -1);
  if (missing != unknown.bytes.end()) {
    fail(ErrorCode::io, "{} has byte_fallback, but no piece <0x{:02X}>.", vocabulary.path(),
         missing - unknown.bytes.begin());
  }
  return unknown;
}

std::unique_ptr<TokenModel> unigram_model(const SentencePieceModel& model, UnknownText unknown) {
  UnigramPieces pieces;
  pieces.unknown = std::move(unknown);
  bool is_first = true;
  for (const Piece& piece : model.pieces) {
    pieces.texts.push_back(piece.text);
    pieces.scores.push_back(piece.score);
    pieces.can_be_used.push_back(can_be_used(piece));
    pieces.user_defined.push_back(piece.type == SentencePieceModel::user_defined);
    if (piece.type != SentencePieceModel::normal) continue;
    pieces.smallest = is_first ? piece.score : std::min(pieces.smallest, piece.score);
    is_first = false;
  }
  return std::make_unique<UnigramModel>(std::move(pieces));
}

BpeRules bpe_rules(const SentencePieceModel& model, const Vocabulary& vocabulary, UnknownText unknown) {
  BpeRules rules;
  rules.tokens = vocabulary.size();
  rules.begins_with_bytes = false;
  rules.unknown = std::move(unknown);
  rules.frozen = user_defined(model);
  const auto is_unused = [](const Piece& piece) { return piece.type == SentencePieceModel::unused; };
  add_merges_of_parts(rules, vocabulary.tokens(), ranks_of(model));
  if (!std::ranges::any_of(model.pieces, is_unused)) return rules;
  for (const Piece& piece : model.pieces) rules.unused.push_back(is_unused(piece));
  return rules;
}

std::string text_of(const Piece& piece, const SentencePieceModel& model) {
  if (piece.type == SentencePieceModel::unknown) return model.unknown_surface;
  if (piece.type == SentencePieceModel::byte) {
    const int byte = named_byte(piece.text);
    if (byte >= 0) return {static_cast<char>(byte)};
  }
  Normalizer normalizer;
  normalizer.replace(space_marker, " ");
  return normalizer.normalized(piece.text);
}

}  // namespace

TokenizerParts parts_of(SentencePieceModel model, const std::string& path) {
  check(model, path);
  std::vector<std::string> tokens;
  for (const Piece& piece : model.pieces) tokens.push_back(piece.text);
  const Vocabulary vocabulary(path, std::move(tokens));
  TokenizerParts parts;
  parts.description = fmt::format("a sentencepiece model of {}", model.kind == SentencePieceModel::bpe ? "bpe" : "unigram");
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    parts.texts.push_back(text_of(piece, model));
    if (piece.type != SentencePieceModel::control) continue;
    parts.added.push_back({.content = piece.text, .token = static_cast<std::int32_t>(i), .is_special = true});
  }
  if (model.adds_dummy_prefix) parts.leading_space = LeadingSpace::goes_behind_special;
  parts.beginning = model.beginning;
  parts.end = model.end;
  SentencePieceNormalizer normalizer;
  if (!model.charsmap.empty()) normalizer.charsmap.emplace(model.charsmap, path);
  normalizer.user_defined = user_defined(model);
  normalizer.adds_dummy_prefix = model.adds_dummy_prefix;
  normalizer.removes_extra_spaces = model.removes_extra_spaces;
  normalizer.escapes_spaces = model.escapes_spaces;
  parts.normalizer.add([normalizer](const std::string& text) { return normalizer.normalized(text); });
  UnknownText unknown = unknown_of(model, vocabulary);
  if (model.kind == SentencePieceModel::unigram) {
    parts.model = unigram_model(model, std::move(unknown));
    return parts;
  }
  BpeRules rules = bpe_rules(model, vocabulary, std::move(unknown));
  cut_at_spaces_and_lines(rules, vocabulary, parts.splitter);
  parts.model = std::make_unique<BpeModel>(std::move(rules));
  return parts;
}

}  // namespace apps
