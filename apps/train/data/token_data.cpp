#include "apps/train/data/token_data.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "apps/common/fail.hpp"
#include "stretto/layers/parameter.hpp"

namespace apps {

namespace {

constexpr std::int64_t tokens_checked_first = std::int64_t{1} << 26;
constexpr double most_validation_windows = 256;

std::optional<double> weight_in(const std::string& word) {
  double weight = 0;
  const char* const end = word.data() + word.size();
  const auto [behind, error] = std::from_chars(word.data(), end, weight);
  if (error != std::errc() || behind != end || !std::isfinite(weight)) return std::nullopt;
  return weight;
}

}  // namespace

std::vector<TokenData::Source> TokenData::read(const char* flag, const std::vector<std::string>& words, DataFormat format) {
  struct Names {
    double weight;
    std::vector<std::string> names;
  };
  std::vector<Names> rows;
  double sum = 0;
  const bool is_mixture = weight_in(words.front()).has_value();
  if (!is_mixture) rows.push_back({sum = 1, {}});
  for (const std::string& word : words) {
    const std::optional<double> weight = weight_in(word);
    require(!weight || is_mixture, "{} {} gives a weight to some of the data only; begin with one, or call a file ./{}.",
            flag, fmt::join(words, " "), word);
    if (weight) {
      require(*weight > 0, "{} {} has the weight {}; give one above 0, or leave its data out.", flag, fmt::join(words, " "),
              *weight);
      sum += rows.emplace_back(Names{*weight, {}}).weight;
    } else {
      rows.back().names.push_back(word);
    }
  }
  std::vector<Source> sources;
  for (const auto& [weight, names] : rows) {
    require(!names.empty(), "{} {} has a weight {} without data behind it; name the data, or call a file ./{}.", flag,
            fmt::join(words, " "), weight, weight);
    auto row = std::make_shared<TokenRow>(names, format);
    sources.push_back({weight / sum, row, 0, row->size(), fmt::format("{}", fmt::join(names, " "))});
  }
  return sources;
}

TokenData::TokenData(const DataOptions& options, std::int64_t vocabulary, std::int64_t sequence, std::uint64_t seed)
    : train_(read("--train-data", options.train, options.format)),
      validates_on_tails_(options.validation.empty()),
      vocabulary_(vocabulary),
      sequence_(sequence),
      seed_(seed) {
  if (validates_on_tails_) {
    for (Source& source : train_) {
      const std::int64_t kept = source.size / 10;
      source.size -= kept;
      validation_.push_back({source.share, source.row, source.size, kept, "the last tenth of " + source.name});
    }
  } else {
    validation_ = read("--val-data", options.validation, options.format);
  }
  for (const std::vector<Source>* sources : {&train_, &validation_}) {
    for (const Source& source : *sources) {
      require(source.row->is_bytes() == is_bytes(),
              "Some of the data are bytes and some are tokens: '{}' and '{}'; give data of one kind.",
              train_.front().row->description(), source.row->description());
      require(source.size > sequence, "{} has {} tokens to use; a sequence of {} needs {}.", source.name, source.size,
              sequence, sequence + 1);
    }
  }
  require(!is_bytes() || vocabulary >= byte_values, "--vocab-size {} is below the {} values that a byte has.", vocabulary,
          byte_values);
}

void TokenData::training_window(std::int64_t number, std::int32_t* tokens, std::int32_t* targets) const {
  const auto drawn = [&](const char* what) {
    return stretto::random_uniform(seed_, what, static_cast<std::uint64_t>(number));
  };
  std::size_t source = 0;
  if (train_.size() > 1) {
    for (double left = drawn("rows of windows"); source + 1 < train_.size() && left >= train_[source].share; ++source) {
      left -= train_[source].share;
    }
  }
  const std::int64_t places = train_[source].size - sequence_;
  const double where = drawn("training windows") * static_cast<double>(places);
  fill(train_[source], static_cast<std::int64_t>(where), tokens, targets);
}

std::int64_t TokenData::windows(const Source& source) const {
  const std::int64_t most = std::max(1L, std::lround(most_validation_windows * source.share));
  return std::clamp<std::int64_t>(source.size / (sequence_ + 1), 1, most);
}

void TokenData::validation_window(std::int64_t i, std::int32_t* tokens, std::int32_t* targets) const {
  const Source* source = validation_.data();
  for (; i >= windows(*source); ++source) i -= windows(*source);
  const std::int64_t places = source->size - sequence_ - 1;
  fill(*source, i * places / std::max<std::int64_t>(1, windows(*source) - 1), tokens, targets);
}

stretto::FillSlot TokenData::training_slots(std::int64_t consumed) const {
  return [this, consumed](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) {
    training_window(consumed + slot, tokens, targets);
  };
}

stretto::FillSlot TokenData::validation_slots() const {
  return
      [this](std::int64_t slot, std::int32_t* tokens, std::int32_t* targets) { validation_window(slot, tokens, targets); };
}

std::int64_t TokenData::validation_windows() const {
  std::int64_t sum = 0;
  for (const Source& source : validation_) sum += windows(source);
  return sum;
}

void TokenData::fill(const Source& source, std::int64_t at, std::int32_t* tokens, std::int32_t* targets) const {
  source.row->read(source.first + at, sequence_, vocabulary_, tokens);
  source.row->read(source.first + at + 1, sequence_, vocabulary_, targets);
}

void TokenData::check_first_tokens() const {
  if (is_bytes()) return;
  for (const Source& source : train_) source.row->check(tokens_checked_first, vocabulary_);
  if (validates_on_tails_) return;
  for (const Source& source : validation_) source.row->check(tokens_checked_first, vocabulary_);
}

std::string TokenData::text_of(const std::vector<Source>& sources, std::string (TokenRow::*text)() const) {
  if (sources.size() == 1) return (*sources.front().row.*text)();
  std::string all;
  for (const Source& source : sources) {
    all += fmt::format("{}{:.3g} of {}", all.empty() ? "" : " and ", source.share, (*source.row.*text)());
  }
  return all;
}

std::vector<stretto::NamedValue> TokenData::contents() const {
  std::vector<stretto::NamedValue> contents{{"--train-data", text_of(train_, &TokenRow::content)}};
  if (!validates_on_tails_) contents.push_back({"--val-data", text_of(validation_, &TokenRow::content)});
  return contents;
}

std::string TokenData::description() const {
  std::string validation = text_of(validation_, &TokenRow::description);
  if (validates_on_tails_) {
    validation =
        validation_.size() > 1 ? "the last tenth of each" : fmt::format("its last {} tokens", validation_.front().size);
  }
  return fmt::format("data {}; validation on {}", text_of(train_, &TokenRow::description), validation);
}

}  // namespace apps
