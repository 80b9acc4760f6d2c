#include "apps/train/run/stragglers.hpp"

#include <algorithm>
#include <numeric>

#include "stretto/device.hpp"

namespace apps {

using namespace stretto;

namespace {

// A slow rank is slow in all parts of an interval but one: a single long step makes no slow rank.
constexpr std::size_t parts = 5;
constexpr std::size_t exceptions = 1;

// A rank that the system preempts for a larger share of the time shares its core with other programs. How these hit it
// differs from rank to rank, and ranks that yield in a wait count that as preemption, too: nothing can be said.
constexpr double most_preempted = 0.25;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double sum(const std::vector<double>& values, std::size_t first, std::size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
}

// others: of the same stage.
SlowRank compared(const std::vector<RankSteps>& ranks, int rank, const std::vector<int>& others, double threshold) {
  const auto& mine = ranks[static_cast<std::size_t>(rank)];
  std::vector<double> preempted;
  preempted.reserve(others.size());
  for (const int other : others) preempted.push_back(ranks[static_cast<std::size_t>(other)].preempted);
  const std::size_t steps = mine.seconds.size();
  const double total = sum(mine.seconds, 0, steps);
  const double unlucky = std::max(0.0, mine.preempted - median(preempted)) / total;
  const bool has_core = mine.preempted <= most_preempted * total;
  std::vector<double> shares;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = part * steps / parts;
    const std::size_t end = (part + 1) * steps / parts;
    std::vector<double> theirs;
    theirs.reserve(others.size());
    for (const int other : others) theirs.push_back(sum(ranks[static_cast<std::size_t>(other)].computing, first, end));
    shares.push_back((sum(mine.computing, first, end) - median(theirs)) / sum(mine.seconds, first, end) - unlucky);
  }
  const double share = median(shares);
  std::ranges::sort(shares);
  return {rank, share, has_core && share >= threshold && shares[exceptions] >= threshold / 2};
}

}  // namespace

std::optional<SlowRank> slowest(const std::vector<RankSteps>& ranks, const std::vector<int>& stage, double threshold) {
  std::optional<SlowRank> result;
  for (int rank = 0; rank < std::ssize(ranks); ++rank) {
    std::vector<int> others;
    for (int other = 0; other < std::ssize(ranks); ++other) {
      if (other != rank && stage[static_cast<std::size_t>(other)] == stage[static_cast<std::size_t>(rank)]) {
        others.push_back(other);
      }
    }
    if (others.empty()) continue;
    const SlowRank found = compared(ranks, rank, others, threshold);
    if (!result || found.share > result->share) result = found;
  }
  return result;
}

Stragglers::Stragglers(const Mesh& mesh, double threshold)
    : mesh_(mesh), threshold_(threshold), preempted_before_(core_time().waiting) {}

std::optional<SlowRank> Stragglers::step(double seconds, double exposed) {
  steps_.seconds.push_back(seconds);
  steps_.computing.push_back(seconds - exposed);
  if (steps_.seconds.size() < interval) return {};
  const double preempted = core_time().waiting;
  std::vector<double> mine = steps_.seconds;
  mine.insert(mine.end(), steps_.computing.begin(), steps_.computing.end());
  mine.push_back(preempted - preempted_before_);
  mine.push_back(mesh_.rank(Axis::pipeline));
  steps_ = {};
  const auto ranks = static_cast<std::size_t>(mesh_.world().size());
  const std::size_t each = mine.size();
  std::vector<double> all(ranks * each);
  mesh_.world()
      .all_gather(mine.data(), all.data(), static_cast<std::int64_t>(each), DType::f64, Stream::inline_(),
                  {.tag = "slow ranks"})
      .wait();
  std::vector<RankSteps> steps(ranks);
  std::vector<int> stages;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(rank * each);
    steps[rank].seconds.assign(from, from + interval);
    steps[rank].computing.assign(from + interval, from + 2L * interval);
    steps[rank].preempted = from[2L * interval];
    stages.push_back(static_cast<int>(from[2L * interval + 1]));
  }
  preempted_before_ = core_time().waiting;
  return slowest(steps, stages, threshold_);
}

}  // namespace apps
