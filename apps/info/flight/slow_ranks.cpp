#include <algorithm>

#include "apps/common/fail.hpp"
#include "apps/common/median.hpp"
#include "apps/info/flight/flights.hpp"

namespace apps::flight {

namespace {

constexpr double least_share = 0.1;  // of the time that the operations span
constexpr std::size_t least_operations = 20;

// The waits that a rank caused, by the operation's headline without its number.
struct Caused {
  double seconds = 0;
  std::size_t times = 0;
  std::map<std::string, double> by_place;
  const FlightOperation* example = nullptr;
};

}  // namespace

// The rank that comes last to an operation that all wait for is in it for the shortest time: no clocks are compared.
std::vector<std::string> slow_ranks(const Job& job) {
  std::vector<std::string> said;
  for (const Sequences& sequences : collectives_of(job)) {
    const std::size_t members = sequences.group.members.size();
    if (members < 2 || sequences.of.size() < members) continue;
    std::map<int, Caused> caused;
    std::size_t complete = 0;
    double first = 0, last = 0;
    for (const auto& [number, operation] : sequences.of.begin()->second) {
      if (operation->root >= 0) continue;  // not everybody waits for everybody
      std::vector<std::pair<double, int>> durations;
      for (const auto& [rank, operations] : sequences.of) {
        const auto found = operations.find(number);
        if (found == operations.end() || !found->second->begun || !found->second->ended) break;
        durations.emplace_back(*found->second->ended - *found->second->begun, rank);
      }
      if (durations.size() < members) continue;
      if (complete++ == 0) first = *operation->begun;
      last = *operation->ended;
      const auto [shortest, rank] = *std::ranges::min_element(durations);
      std::vector<double> waits;
      for (const auto& each : durations) {
        if (each.second != rank) waits.push_back(each.first - shortest);
      }
      const double wait = median(waits);
      Caused& sum = caused[rank];
      sum.seconds += wait;
      ++sum.times;
      const FlightOperation& its = *sequences.of.at(rank).at(number);
      double& here = sum.by_place[its.what + its.site + its.tag];
      here += wait;
      const bool most = std::ranges::all_of(sum.by_place, [&](const auto& other) { return other.second <= here; });
      if (most) sum.example = &its;
    }
    for (const auto& [rank, sum] : caused) {
      if (complete < least_operations || sum.seconds < least_share * (last - first) || sum.times * 2 < complete) continue;
      said.push_back(fmt::format(
          "Rank {} is slow: it came last to {} of the last {} operations of '{}', and the others waited {:.3f} s for it, "
          "{:.0f}% of the time; longest in operations like {}.",
          rank, sum.times, complete, sequences.group.name, sum.seconds, 100 * sum.seconds / (last - first),
          headline(*sum.example, sequences.group)));
    }
  }
  return said;
}

}  // namespace apps::flight
