#include <algorithm>
#include <set>

#include "apps/common/fail.hpp"
#include "apps/info/flight/flights.hpp"

namespace apps::flight {

namespace {

// Ranks that wait in one operation for the same others.
struct Wait {
  const FlightOperation* operation = nullptr;  // of the rank that waits longest
  FlightGroup group;
  double seconds = 0;
  std::vector<int> waiting, awaited;
};

bool has_begun(const Sequences& sequences, int rank, std::int64_t number) {
  const auto of_rank = sequences.of.find(rank);
  if (of_rank == sequences.of.end()) return false;
  const auto operation = of_rank->second.find(number);
  return operation != of_rank->second.end() && operation->second->begun;
}

void add_waits(const Job& job, const Sequences& sequences, const std::vector<int>& members, std::vector<Wait>& waits) {
  std::map<std::int64_t, Wait> by_number;
  for (const auto& [rank, operations] : sequences.of) {
    for (const auto& [number, operation] : operations) {
      if (!operation->waits()) continue;
      Wait& wait = by_number[number];
      wait.group = sequences.group;
      wait.waiting.push_back(rank);
      const double seconds = std::max(0.0, job.flights.at(rank).written - *operation->begun);
      if (wait.operation != nullptr && seconds <= wait.seconds) continue;
      wait.seconds = seconds;
      wait.operation = operation;
    }
  }
  for (auto& [number, wait] : by_number) {
    for (const int member : members) {
      if (!has_begun(sequences, member, number)) wait.awaited.push_back(member);
    }
    waits.push_back(std::move(wait));
  }
}

std::vector<Wait> all_waits(const Job& job) {
  std::vector<Wait> waits;
  for (const Sequences& sequences : collectives_of(job)) add_waits(job, sequences, sequences.group.members, waits);
  for (const Sequences& sequences : messages_of(job)) {
    const auto& [rank, operations] = *sequences.of.begin();
    const FlightOperation& first = *operations.begin()->second;
    add_waits(job, sequences, {rank, sequences.group.members[static_cast<std::size_t>(first.root)]}, waits);
  }
  std::ranges::sort(waits, std::greater<>(), &Wait::seconds);
  return waits;
}

// The rank's last operation in the communicator of the wait.
std::string place_of(const Job& job, int rank, const Wait& wait) {
  const auto flight = job.flights.find(rank);
  if (flight == job.flights.end()) {
    return fmt::format("Rank {} wrote no file: its process was stopped or killed, or its host cannot be reached.", rank);
  }
  const FlightOperation* last = nullptr;
  for (const FlightOperation& operation : flight->second.operations) {
    if (operation.group == wait.group.id && operation.is_message() == wait.operation->is_message()) last = &operation;
  }
  const std::string text =
      last == nullptr ? "none of its last operations is one of that communicator"
                      : fmt::format("its last operation there is {} ({})", headline(*last, wait.group), last->state);
  return fmt::format("Rank {} is behind: {}. It {}.", rank, text, flight->second.account);
}

// A circle of ranks, each of which waits for the next; empty if there is none.
std::vector<int> circle_in(const std::map<int, std::set<int>>& waits_for) {
  for (const auto& entry : waits_for) {
    std::vector<int> path{entry.first};
    while (true) {
      const auto next = waits_for.find(path.back());
      if (next == waits_for.end() || next->second.empty()) break;
      const auto before = std::ranges::find(path, *next->second.begin());
      if (before != path.end()) return {before, path.end()};
      path.push_back(*next->second.begin());
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> waits(const Job& job) {
  std::vector<std::string> said;
  std::map<int, std::set<int>> waits_for;
  std::set<int> described;
  for (const Wait& wait : all_waits(job)) {
    const std::string where =
        fmt::format("{} wait{} in {} for up to {:.1f} s", names_of(wait.waiting), wait.waiting.size() == 1 ? "s" : "",
                    headline(*wait.operation, wait.group), wait.seconds);
    for (const int rank : wait.waiting) waits_for[rank].insert(wait.awaited.begin(), wait.awaited.end());
    std::string sentence = (wait.awaited.empty() ? where + ", in which all its ranks are."
                                                 : fmt::format("{} for {}.", where, names_of(wait.awaited)));
    sentence.front() = static_cast<char>(std::toupper(sentence.front()));
    for (const int rank : wait.awaited) {
      if (described.insert(rank).second) sentence.append(" ").append(place_of(job, rank, wait));
    }
    said.push_back(std::move(sentence));
  }
  const std::vector<int> circle = circle_in(waits_for);
  if (!circle.empty()) {
    said.push_back(fmt::format("A circle: rank {}, each of which waits for the next, and the last one for the first.",
                               fmt::join(circle, ", then rank ")));
  }
  return said;
}

}  // namespace apps::flight
