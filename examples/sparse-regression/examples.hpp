#pragma once
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

// Examples of sparse features: a label of 0 or 1, and values of some of 2^64 features. Each feature takes 12 bytes.
struct Examples {
  std::vector<std::uint64_t> keys;
  std::vector<float> values, labels;
  std::vector<std::size_t> ends;  // of each example in keys and values

  std::size_t size() const { return labels.size(); }
  std::size_t begin_of(std::size_t example) const { return example == 0 ? 0 : ends[example - 1]; }
  void add_feature(std::uint64_t key, float value) {
    keys.push_back(key);
    values.push_back(value);
  }
  void end_example(float label) {
    labels.push_back(label);
    ends.push_back(keys.size());
  }
};

// A worker's examples, of which a call gets the next so many.
using NextExamples = std::function<Examples(std::size_t count)>;

// Labels follow from hidden weights, by chance. Low features are frequent, high ones rare, and one in five matters. Examples
// are made when they are asked for, so that there may be any number of them.
inline NextExamples generated(std::uint64_t seed) {
  constexpr std::uint64_t features = 5000, of_an_example = 20;
  std::vector<float> hidden;
  for (std::uint64_t feature = 0; feature < features; ++feature) {
    std::mt19937_64 draw(feature);
    hidden.push_back(draw() % 5 != 0 ? 0.0F : draw() % 2 == 0 ? 2.0F : -2.0F);
  }
  return [=, draw = std::mt19937_64(seed)](std::size_t count) mutable {
    std::uniform_real_distribution<double> uniform;
    Examples examples;
    for (std::size_t i = 0; i < count; ++i) {
      float sum = 0;
      for (std::uint64_t k = 0; k < of_an_example; ++k) {
        const double place = uniform(draw);
        examples.add_feature(static_cast<std::uint64_t>(static_cast<double>(features) * place * place), 1);
        sum += hidden[examples.keys.back()];
      }
      examples.end_example(uniform(draw) < 1 / (1 + std::exp(-sum)) ? 1.0F : 0.0F);
    }
    return examples;
  };
}

// Those examples of `all` whose numbers are `worker` modulo `workers`, in another order in each pass. `all` must outlive it.
inline NextExamples shuffled(const Examples& all, std::size_t worker, std::size_t workers) {
  std::vector<std::size_t> order;
  for (std::size_t i = worker; i < all.size(); i += workers) order.push_back(i);
  return [&all, order, at = order.size(), draw = std::mt19937_64(worker)](std::size_t count) mutable {
    Examples examples;
    while (examples.size() < count) {
      if (at == order.size()) {
        std::shuffle(order.begin(), order.end(), draw);
        at = 0;
      }
      const std::size_t example = order[at++];
      for (std::size_t k = all.begin_of(example); k < all.ends[example]; ++k)
        examples.add_feature(all.keys[k], all.values[k]);
      examples.end_example(all.labels[example]);
    }
    return examples;
  };
}

// A data set in the format of LIBSVM and svmlight: lines "LABEL KEY:VALUE KEY:VALUE ...", with keys that ascend and labels
// 1, and 0 or -1. Every tenth example is held out.
struct DataSet {
  Examples trained, unseen;
};

namespace parts_of_lines {
// Takes a number and then the character `end`, if one is asked for, off the text.
template <class Number>
bool take(const char*& text, const char* text_end, Number& number, char end = 0) {
  const auto [behind, error] = std::from_chars(text, text_end, number);
  if (error != std::errc() || (end != 0 && (behind == text_end || *behind != end))) return false;
  text = behind + (end != 0 ? 1 : 0);
  return true;
}

inline void skip_spaces(const char*& text, const char* end) {
  while (text < end && (*text == ' ' || *text == '\t' || *text == '\r')) ++text;
}
}  // namespace parts_of_lines

// Adds a line to the examples, its values scaled to a Euclidean length of 1, so that one step size suits all data sets.
// Returns what is wrong with the line, or nothing.
inline std::string add_line(const char* text, const char* end, Examples& examples) {
  using namespace parts_of_lines;
  float label = 0;
  if (text < end && *text == '+') ++text;
  if (!take(text, end, label) || (label != 1 && label != 0 && label != -1)) return "begins with no label of 1, 0 or -1";
  double squares = 0;
  const std::size_t first = examples.keys.size();
  for (skip_spaces(text, end); text < end; skip_spaces(text, end)) {
    std::uint64_t key = 0;
    float value = 0;
    if (!take(text, end, key, ':') || !take(text, end, value) || !std::isfinite(value)) {
      return "has something else than KEY:VALUE behind " + std::to_string(examples.keys.size() - first) + " features";
    }
    if (examples.keys.size() > first && key <= examples.keys.back()) {
      return "has the key " + std::to_string(key) + " behind " + std::to_string(examples.keys.back()) +
             ", and keys must ascend";
    }
    examples.add_feature(key, value);
    squares += static_cast<double>(value) * value;
  }
  for (std::size_t k = first; k < examples.keys.size() && squares > 0; ++k) {
    examples.values[k] = static_cast<float>(examples.values[k] / std::sqrt(squares));
  }
  examples.end_example(label > 0 ? 1.0F : 0.0F);
  return "";
}

inline DataSet read_examples(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + " cannot be read; give a file in LIBSVM's format.");
  DataSet set;
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const char* text = line.data();
    const char* const end = text + std::min(line.find('#'), line.size());
    parts_of_lines::skip_spaces(text, end);
    if (text == end) continue;
    const std::size_t before = set.trained.size() + set.unseen.size();
    const std::string wrong = add_line(text, end, before % 10 == 9 ? set.unseen : set.trained);
    if (!wrong.empty()) throw std::runtime_error(file + ":" + std::to_string(number) + ": the line " + wrong + ".");
  }
  return set;
}
