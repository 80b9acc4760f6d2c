#include "perf/stragglers/outliers.hpp"

#include <fmt/format.h>
#include <algorithm>

namespace perf {

namespace {

// The median; of an even number of times, the shorter one of the two in the middle: of two ranks, one can be slow.
double median(std::vector<double> times) {
  if (times.empty()) return 0;
  std::ranges::sort(times);
  return times[(times.size() - 1) / 2];
}

std::string whose(const std::vector<RankRates>& ranks, std::size_t rank) {
  return fmt::format("Rank {} ({})", rank, ranks[rank].host);
}

void judge_rates(const std::vector<RankRates>& ranks, double RankRates::*rate, const char* what, double unit,
                 const char* unit_name, double threshold, std::vector<std::string>& said) {
  std::vector<double> times;
  times.reserve(ranks.size());
  for (const RankRates& each : ranks) times.push_back(1 / (each.*rate));
  const double usual = 1 / median(times);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const double its = ranks[rank].*rate;
    if (its >= (1 - threshold) * usual) continue;
    said.push_back(fmt::format("{} {} at {:.3g} {}, {:.0f}% below the median of {:.3g}.", whose(ranks, rank), what,
                               its / unit, unit_name, 100 * (1 - its / usual), usual / unit));
  }
}

// value(a, b): larger is slower.
template <class Value>
void judge_links(const std::vector<RankRates>& ranks, const Value& value, double limit, const char* what, double unit,
                 const char* unit_name, std::vector<std::string>& said) {
  for (const bool inside : {true, false}) {
    const auto is_of_kind = [&](std::size_t a, std::size_t b) {
      return a != b && (ranks[a].node == ranks[b].node) == inside;
    };
    std::vector<double> all;
    for (std::size_t a = 0; a < ranks.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (is_of_kind(a, b)) all.push_back(value(a, b));
      }
    }
    const double usual = median(all);
    const auto is_slow = [&](std::size_t a, std::size_t b) { return is_of_kind(a, b) && value(a, b) > limit * usual; };
    std::vector<bool> named(ranks.size());
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::vector<double> slow;
      std::size_t links = 0;
      for (std::size_t other = 0; other < ranks.size(); ++other) {
        links += is_of_kind(rank, other) ? 1 : 0;
        if (is_slow(rank, other)) slow.push_back(value(rank, other));
      }
      if (links < 2 || 2 * slow.size() <= links) continue;
      named[rank] = true;
      said.push_back(fmt::format("{} has slow links {} nodes: {} {:.3g} {} to {} of {} ranks, and {:.3g} is usual.",
                                 whose(ranks, rank), inside ? "inside" : "between", what, median(slow) / unit, unit_name,
                                 slow.size(), links, usual / unit));
    }
    for (std::size_t a = 0; a < ranks.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (!is_slow(a, b) || named[a] || named[b]) continue;
        said.push_back(fmt::format("The link between ranks {} ({}) and {} ({}) is slow: {} {:.3g} {}, and {:.3g} is usual.",
                                   b, ranks[b].host, a, ranks[a].host, what, value(a, b) / unit, unit_name, usual / unit));
      }
    }
  }
}

}  // namespace

std::vector<std::string> outliers(const std::vector<RankRates>& ranks, double threshold) {
  std::vector<std::string> said;
  judge_rates(ranks, &RankRates::products, "multiplies matrices", 1e9, "GFLOP/s", threshold, said);
  judge_rates(ranks, &RankRates::memory, "copies memory", 1e9, "GB/s", threshold, said);
  const auto seconds_of_megabyte = [&](std::size_t a, std::size_t b) {
    return 1e6 / std::max(1.0, std::min(ranks[a].bandwidth[b], ranks[b].bandwidth[a]));
  };
  const auto latency = [&](std::size_t a, std::size_t b) { return std::max(ranks[a].latency[b], ranks[b].latency[a]); };
  judge_links(ranks, seconds_of_megabyte, 1 / (1 - threshold), "a megabyte takes", 1e-6, "us", said);
  judge_links(ranks, latency, 1 + 4 * threshold, "8 bytes take", 1e-6, "us", said);
  return said;
}

}  // namespace perf
