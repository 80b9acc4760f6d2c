// Rules, and the choice among measured routes. tuning_json.cpp reads tuning files.
#include "stretto/planning/tuning.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <sstream>

#include "collectives/selection/default_tuning.hpp"
#include "core/fail.hpp"
#include "core/files/text_file.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::int64_t bytes_from_text(const std::string& text, const std::string& rule) {
  if (text == "inf") return INT64_MAX;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const int shift = unit == "k" || unit == "K" ? 10 : unit == "m" || unit == "M" ? 20 : unit == "g" || unit == "G" ? 30 : 0;
  require(end != text.c_str() && number >= 0 && number < 1e12 && (unit.empty() || shift > 0),
          "'{}' in '{}' is no number of bytes; write one like 512, 4k, 1M or inf.", text, rule);
  return static_cast<std::int64_t>(number * std::pow(2.0, shift));
}

// Reads "0-4k:ring" or "ring".
Rule range_from_text(const std::string& text, Rule rule) {
  const std::size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const std::string range = text.substr(0, colon);
    const std::size_t dash = range.find('-');
    require(dash != std::string::npos, "'{}' in {} is no range of bytes; write one like 0-4k or 4k-inf.", range,
            rule.source);
    rule.first = bytes_from_text(range.substr(0, dash), text);
    rule.last = bytes_from_text(range.substr(dash + 1), text);
    require(rule.first < rule.last, "The range '{}' in {} is empty.", range, rule.source);
  }
  rule.method = method_from_text(text.substr(colon == std::string::npos ? 0 : colon + 1));
  require(rule.method.algorithm == Algorithm::automatic || can_do(rule.collective, rule.method.algorithm),
          "{} says '{}' for {}, which cannot be done that way.", rule.source, to_string(rule.method), name(rule.collective));
  const Method& method = rule.method;
  require((method.pieces == 1 || takes_pieces(method.algorithm)) &&
              (!needs_nodes(method.algorithm) || method.inside != Algorithm::automatic),
          "{} says '{}' for {}, which only what is quantized can be; rules are of plain calls.", rule.source,
          to_string(method), name(rule.collective));
  return rule;
}

}  // namespace

std::vector<Rule> rules_from_text(const std::string& text, const std::string& source) {
  std::vector<Rule> rules;
  for (const std::string& part : split(text, ';')) {
    const std::size_t colon = part.find(':');
    require(colon != std::string::npos,
            "'{}' in {} is no rule; write one like all_reduce:0-4k:recursive_doubling,4k-inf:ring.", part, source);
    std::string collective = part.substr(0, colon);
    Rule rule;
    rule.source = source;
    if (const std::size_t at = collective.find('@'); at != std::string::npos) {
      const std::string ranks = collective.substr(at + 1);
      require(!ranks.empty() && ranks.size() < 7 && ranks.find_first_not_of("0123456789") == std::string::npos,
              "'{}' in {} is no number of ranks; write one like all_reduce@8.", ranks, source);
      rule.ranks = std::stoi(ranks);
      require(rule.ranks > 0, "'@{}' in {}: a group has 1 rank or more; leave out '@{}' for a rule of any number.", ranks,
              source, ranks);
      collective.resize(at);
    }
    rule.collective = collective_from_name(collective);
    require(part.back() != ':' && part.back() != ',',
            "'{}' in {} ends without a method; write one like all_reduce:0-4k:recursive_doubling,4k-inf:ring.", part,
            source);
    for (const std::string& range : split(part.substr(colon + 1), ',')) rules.push_back(range_from_text(range, rule));
  }
  return rules;
}

std::string to_text(const std::vector<Rule>& rules) {
  std::string text;
  for (const Rule& rule : rules) {
    const std::string ranks = rule.ranks == 0 ? "" : fmt::format("@{}", rule.ranks);
    const std::string last = rule.last == INT64_MAX ? "inf" : std::to_string(rule.last);
    text += fmt::format("{}{}{}:{}-{}:{}", text.empty() ? "" : ";", name(rule.collective), ranks, rule.first, last,
                        to_string(rule.method));
  }
  return text;
}

std::string Tuning::file_from_environment() {
  return setting("STRETTO_DETERMINISTIC") == "1" ? "" : setting("STRETTO_TUNING");
}

std::string Tuning::text_from_environment() {
  const std::string path = file_from_environment();
  return path.empty() ? default_tuning : text_of_file(path, "STRETTO_TUNING=" + path);
}

Tuning Tuning::from_environment() { return with_settings(text_from_environment(), file_from_environment()); }

Tuning Tuning::with_settings(const std::string& file_text, const std::string& source) {
  Tuning tuning = from_json(file_text, source.empty() ? "the built-in tuning" : source);
  const std::vector<Rule> first = rules_from_text(setting("STRETTO_ALGO"), "STRETTO_ALGO");
  tuning.rules.insert(tuning.rules.begin(), first.begin(), first.end());
  tuning.deterministic = setting("STRETTO_DETERMINISTIC") == "1";
  return tuning;
}

bool RouteCost::measured_with(int its_ranks, double its_ranks_per_core) const {
  return ranks == its_ranks && std::abs(std::log(ranks_per_core / its_ranks_per_core)) < std::log(1.2);
}

const RouteCost& Tuning::nearest(const std::string& route, int ranks, double ranks_per_core) const {
  const RouteCost* best = nullptr;
  // The number of ranks per core matters more than the number of ranks.
  const auto distance = [&](const RouteCost& known) {
    return std::abs(std::log(known.ranks_per_core / ranks_per_core)) +
           0.1 * std::abs(std::log(static_cast<double>(known.ranks) / ranks));
  };
  for (const RouteCost& known : routes) {
    if (known.route == route && (best == nullptr || distance(known) < distance(*best))) best = &known;
  }
  require(best != nullptr,
          "The tuning file has no costs of the route '{}'; stretto-perf calibrate --routes {} measures them.", route, route);
  return *best;
}

}  // namespace stretto
