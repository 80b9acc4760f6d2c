#include "apps/tokenizers/text/splitter.hpp"

#include <algorithm>
#include <utility>

#include "apps/tokenizers/text/utf8.hpp"

namespace apps {

namespace {

struct Segment {
  std::size_t begin, end;
  bool is_match;
};

// All of the text, as matches and what lies between.
std::vector<Segment> segments(const Pattern& pattern, std::string_view text, bool inverts) {
  std::vector<Segment> result;
  std::size_t at = 0;
  for (auto match = pattern.find(text, 0); match; match = pattern.find(text, at)) {
    if (at < match->begin) result.push_back({at, match->begin, inverts});
    result.push_back({match->begin, match->end, !inverts});
    at = match->end;
  }
  if (at < text.size()) result.push_back({at, text.size(), inverts});
  return result;
}

// A match joins what is before it, unless that is a match.
std::vector<Segment> joined_with_previous(const std::vector<Segment>& segments) {
  std::vector<Segment> result;
  bool was_match = false;
  for (const Segment& segment : segments) {
    if (segment.is_match && !was_match && !result.empty()) {
      result.back().end = segment.end;
    } else {
      result.push_back(segment);
    }
    was_match = segment.is_match;
  }
  return result;
}

std::vector<Segment> joined_with_next(const std::vector<Segment>& segments) {
  std::vector<Segment> result;
  bool was_match = false;
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (segment->is_match && !was_match && !result.empty()) {
      result.back().begin = segment->begin;
    } else {
      result.push_back(*segment);
    }
    was_match = segment->is_match;
  }
  std::ranges::reverse(result);
  return result;
}

std::vector<Segment> joined_with_alike(const std::vector<Segment>& segments) {
  std::vector<Segment> result;
  for (const Segment& segment : segments) {
    if (!result.empty() && result.back().is_match == segment.is_match) {
      result.back().end = segment.end;
    } else {
      result.push_back(segment);
    }
  }
  return result;
}

class SplitAt : public Splitter::Step {
 public:
  using Behavior = Splitter::Behavior;
  SplitAt(Pattern pattern, Behavior behavior, bool inverts)
      : pattern_(std::move(pattern)), behavior_(behavior), inverts_(inverts) {}

  void run(std::string_view piece, bool, const TakePiece& take) const override {
    if (behavior_ == Behavior::isolated) return isolate(piece, take);
    std::vector<Segment> found = segments(pattern_, piece, inverts_);
    if (behavior_ == Behavior::removed) std::erase_if(found, [](const Segment& segment) { return segment.is_match; });
    if (behavior_ == Behavior::merged_with_previous) found = joined_with_previous(found);
    if (behavior_ == Behavior::merged_with_next) found = joined_with_next(found);
    if (behavior_ == Behavior::contiguous) found = joined_with_alike(found);
    for (const Segment& segment : found) take(piece.substr(segment.begin, segment.end - segment.begin));
  }

 private:
  // One by one, since a text may be as large as a file.
  void isolate(std::string_view text, const TakePiece& take) const {
    std::size_t at = 0;
    for (auto match = pattern_.find(text, 0); match; match = pattern_.find(text, at)) {
      if (at < match->begin) take(text.substr(at, match->begin - at));
      take(text.substr(match->begin, match->end - match->begin));
      at = match->end;
    }
    if (at < text.size()) take(text.substr(at));
  }

  Pattern pattern_;
  Behavior behavior_;
  bool inverts_;
};

class PrefixSpace : public Splitter::Step {
 public:
  void run(std::string_view piece, bool, const TakePiece& take) const override {
    if (piece.starts_with(' ')) return take(piece);
    take(std::string(" ").append(piece));
  }
};

class CutWords : public Splitter::Step {
 public:
  explicit CutWords(std::string marker) : marker_(std::move(marker)) {}

  void run(std::string_view piece, bool, const TakePiece& take) const override {
    while (!piece.empty()) {
      std::size_t end = 0;
      while (piece.substr(end).starts_with(marker_)) end += marker_.size();
      end = std::min(piece.find(marker_, end), piece.size());
      take(piece.substr(0, end));
      piece.remove_prefix(end);
    }
  }

 private:
  std::string marker_;
};

class Metaspace : public Splitter::Step {
 public:
  using Prepend = Splitter::Prepend;
  Metaspace(std::string replacement, Prepend prepend, bool splits)
      : replacement_(std::move(replacement)), prepend_(prepend), splits_(splits) {}

  void run(std::string_view piece, bool begins, const TakePiece& take) const override {
    std::string text;
    for (const char c : piece) c == ' ' ? text += replacement_ : text += c;
    const bool prepends = prepend_ == Prepend::always || (prepend_ == Prepend::first && begins);
    if (prepends && !text.starts_with(replacement_)) text.insert(0, replacement_);
    if (!splits_) return take(text);
    // Each replacement begins a piece, also one that follows another.
    for (std::string_view rest = text; !rest.empty();) {
      const std::size_t after = rest.starts_with(replacement_) ? replacement_.size() : 0;
      const std::size_t end = std::min(rest.find(replacement_, after), rest.size());
      take(rest.substr(0, end));
      rest.remove_prefix(end);
    }
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool splits_;
};

}  // namespace

void Splitter::split_at(const Pattern& pattern, Behavior behavior, bool inverts) {
  steps_.push_back(std::make_shared<SplitAt>(pattern, behavior, inverts));
}

void Splitter::prefix_space() { steps_.push_back(std::make_shared<PrefixSpace>()); }

void Splitter::metaspace(const std::string& replacement, Prepend prepend, bool splits) {
  steps_.push_back(std::make_shared<Metaspace>(replacement, prepend, splits));
}

void Splitter::cut_words(const std::string& marker) { steps_.push_back(std::make_shared<CutWords>(marker)); }

void Splitter::split(std::string_view text, bool begins, const TakePiece& take) const {
  while (!text.empty()) {
    const std::size_t valid = valid_length(text);
    if (valid > 0) run(0, text.substr(0, valid), begins, take);
    if (valid < text.size()) take(text.substr(valid, 1));
    text.remove_prefix(std::min(valid + 1, text.size()));
    begins = false;
  }
}

void Splitter::run(std::size_t step, std::string_view piece, bool begins, const TakePiece& take) const {
  if (step == steps_.size()) return take(piece);
  if (step + 1 == steps_.size()) return steps_[step]->run(piece, begins, take);
  bool is_first = begins;
  steps_[step]->run(piece, begins,
                    [&](std::string_view part) { run(step + 1, part, std::exchange(is_first, false), take); });
}

}  // namespace apps
