// The filters that leave rows out of a push.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "core/fail.hpp"
#include "core/split_mix.hpp"
#include "stretto/push_filters.hpp"

namespace stretto::push_filters {
namespace {

class Thinning : public PushFilter {
 public:
  explicit Thinning(std::int64_t width) : width_(width) {}

  void encode(PushedMessage& message) override {
    const auto width = static_cast<std::size_t>(width_);
    const std::size_t rows = message.rows ? static_cast<std::size_t>(message.rows.size()) / width : 0;
    std::vector<std::uint64_t> keys;
    std::vector<float> kept;
    std::vector<float> row(width);
    for (std::size_t i = 0; i < rows; ++i) {
      const std::uint64_t key = message.all ? i : message.keys[i];
      std::copy_n(message.rows.data<float>() + i * width, width, row.begin());
      if (!keeps(key, row)) continue;
      keys.push_back(key);
      kept.insert(kept.end(), row.begin(), row.end());
    }
    message.all = message.all && keys.size() == rows;
    if (message.all) keys.clear();
    message.keys = std::move(keys);
    message.rows = kept.empty() ? Tensor() : Tensor::of(kept);
  }

 private:
  // May change the row.
  virtual bool keeps(std::uint64_t key, std::vector<float>& row) = 0;

  std::int64_t width_;
};

class SignificantlyModified final : public Thinning {
 public:
  SignificantlyModified(std::int64_t width, double threshold) : Thinning(width), threshold_(threshold) {}

 private:
  bool keeps(std::uint64_t key, std::vector<float>& row) override {
    const auto held = held_back_.find(key);
    if (held != held_back_.end()) {
      for (std::size_t i = 0; i < row.size(); ++i) row[i] += held->second[i];
      held_back_.erase(held);
    }
    if (std::ranges::any_of(row, [&](float each) { return !(std::fabs(each) < threshold_); })) return true;
    held_back_.emplace(key, row);
    return false;
  }

  double threshold_;
  std::unordered_map<std::uint64_t, std::vector<float>> held_back_;
};

class RandomSkip final : public Thinning {
 public:
  RandomSkip(std::int64_t width, double probability, std::uint64_t seed)
      : Thinning(width), probability_(probability), state_(seed) {}

 private:
  bool keeps(std::uint64_t /*key*/, std::vector<float>& /*row*/) override {
    return static_cast<double>(split_mixed(state_ += split_mix_step) >> 11) * 0x1p-53 >= probability_;
  }

  double probability_;
  std::uint64_t state_;
};

class Kkt final : public Thinning {
 public:
  Kkt(std::int64_t width, double most) : Thinning(width), most_(most) {}

  void see_pulled(const std::vector<std::uint64_t>& keys, const Tensor& rows) override {
    const std::size_t width = keys.empty() ? 1 : static_cast<std::size_t>(rows.size()) / keys.size();
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows.size()) / width; ++i) {
      const float* const row = rows.data<float>() + i * width;
      is_zero_[keys.empty() ? i : keys[i]] = std::all_of(row, row + width, [](float each) { return each == 0; });
    }
  }

 private:
  bool keeps(std::uint64_t key, std::vector<float>& row) override {
    const auto known = is_zero_.find(key);
    if (known == is_zero_.end() || !known->second) return true;
    return !std::ranges::all_of(row, [&](float each) { return std::fabs(each) <= most_; });
  }

  double most_;
  std::unordered_map<std::uint64_t, bool> is_zero_;
};

}  // namespace

FilterKind significantly_modified(double threshold) {
  require(threshold >= 0, "Rows cannot be held back below a threshold of {}; give one from 0 on.", threshold);
  return {fmt::format("significantly_modified({})", threshold),
          [=](const FilteredPart& part) { return std::make_unique<SignificantlyModified>(part.width, threshold); }};
}

FilterKind random_skip(double probability) {
  require(probability >= 0 && probability <= 1, "Rows cannot be skipped with a probability of {}; give 0 to 1.",
          probability);
  return {fmt::format("random_skip({})", probability),
          [=](const FilteredPart& part) { return std::make_unique<RandomSkip>(part.width, probability, part.seed); }};
}

FilterKind kkt(double lambda, double delta) {
  require(delta >= 0 && lambda >= delta, "lambda {} and delta {} leave out no gradient; give 0 <= delta <= lambda.", lambda,
          delta);
  return {fmt::format("kkt({}, {})", lambda, delta),
          [=](const FilteredPart& part) { return std::make_unique<Kkt>(part.width, lambda - delta); }};
}

}  // namespace stretto::push_filters
