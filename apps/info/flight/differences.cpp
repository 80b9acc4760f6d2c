#include <algorithm>
#include <set>

#include "apps/common/fail.hpp"
#include "apps/info/flight/flights.hpp"

namespace apps::flight {

namespace {

using Operations = std::map<std::int64_t, const FlightOperation*>;

// Whether two ranks' calls can be one operation. Ranks may have different counts where shares are uneven. The type on the
// wire is known once the operation has begun.
bool fit(const FlightOperation& a, const FlightOperation& b) {
  if (a.is_message() || b.is_message()) return a.what != b.what && a.count == b.count;
  const bool counts_differ = a.what == "all_to_all" || a.what == "gather" || a.what == "scatter";
  return a.what == b.what && a.root == b.root && (counts_differ || a.count == b.count) &&
         (!a.begun || !b.begun || a.type == b.type);
}
bool alike(const FlightOperation& a, const FlightOperation& b) { return fit(a, b) && a.site == b.site && a.tag == b.tag; }

using Compare = bool (*)(const FlightOperation&, const FlightOperation&);

const FlightOperation* at(const Operations& operations, std::int64_t number) {
  const auto found = operations.find(number);
  return found == operations.end() ? nullptr : found->second;
}

// What most ranks called under each number; among equally many, the lowest rank's.
Operations called_by_most(const Sequences& sequences, Compare same) {
  Operations result;
  std::set<std::int64_t> numbers;
  for (const auto& [rank, operations] : sequences.of) {
    for (const auto& entry : operations) numbers.insert(entry.first);
  }
  for (const std::int64_t number : numbers) {
    std::ptrdiff_t most = 0;
    for (const auto& [rank, operations] : sequences.of) {
      const FlightOperation* const mine = at(operations, number);
      if (mine == nullptr) continue;
      const auto agree = std::ranges::count_if(sequences.of, [&](const auto& other) {
        const FlightOperation* const theirs = at(other.second, number);
        return theirs != nullptr && same(*mine, *theirs);
      });
      if (agree <= most) continue;
      most = agree;
      result[number] = mine;
    }
  }
  return result;
}

// Whether all operations of the rank from `first` on are those that most ranks called `shift` numbers later.
bool follows(const Operations& mine, const Operations& most, std::int64_t first, std::int64_t shift, Compare same) {
  bool any = false;
  for (auto each = mine.lower_bound(first); each != mine.end(); ++each) {
    const FlightOperation* const theirs = at(most, each->first + shift);
    if (theirs == nullptr) continue;
    if (!same(*each->second, *theirs)) return false;
    any = true;
  }
  return any;
}

std::vector<int> others(const Sequences& sequences, int rank) {
  std::vector<int> result;
  for (const auto& entry : sequences.of) {
    if (entry.first != rank) result.push_back(entry.first);
  }
  return result;
}

// The first place where the rank differs from most. by_site: operations of one shape are told apart by their call sites,
// which ranks may have different ones of for good reasons: then only a shift or an exchange counts as a difference.
std::string difference_of(const Sequences& sequences, int rank, const Operations& most, Compare same, bool by_site) {
  const Operations& mine = sequences.of.at(rank);
  for (const auto& [number, operation] : mine) {
    const FlightOperation* const theirs = at(most, number);
    if (theirs == nullptr || same(*operation, *theirs)) continue;
    const FlightOperation* const next = at(mine, number + 1);
    const FlightOperation* const their_next = at(most, number + 1);
    const std::string rest = names_of(others(sequences, rank));
    if (next != nullptr && their_next != nullptr && same(*operation, *their_next) && same(*next, *theirs) &&
        !same(*operation, *next)) {
      return fmt::format("Rank {} called {} before {}; {} called them in the other order, {} before {}.", rank,
                         headline(*operation, sequences.group), headline(*next, sequences.group), rest,
                         headline(*theirs, sequences.group), headline(*their_next, sequences.group));
    }
    if (follows(mine, most, number, 1, same)) {
      return fmt::format("Rank {} left out {}, which {} called; instead it went on to {}.", rank,
                         headline(*theirs, sequences.group), rest, headline(*operation, sequences.group));
    }
    if (follows(mine, most, number + 1, -1, same)) {
      return fmt::format("Rank {} called {}, which {} did not call.", rank, headline(*operation, sequences.group), rest);
    }
    if (by_site) return "";
    return fmt::format("Rank {} called {} where {} called {}.", rank, headline(*operation, sequences.group), rest,
                       headline(*theirs, sequences.group));
  }
  return "";
}

void compare(const Sequences& sequences, Compare same, bool by_site, std::vector<std::string>& said) {
  const Operations most = called_by_most(sequences, same);
  for (const auto& entry : sequences.of) {
    std::string sentence = difference_of(sequences, entry.first, most, same, by_site);
    if (!sentence.empty()) said.push_back(std::move(sentence));
  }
}

}  // namespace

std::vector<std::string> differences(const Job& job) {
  std::vector<std::string> said;
  for (const Sequences& sequences : collectives_of(job)) {
    const std::size_t before = said.size();
    compare(sequences, fit, false, said);
    if (said.size() == before) compare(sequences, alike, true, said);
  }
  for (const Sequences& sequences : messages_of(job)) {
    if (sequences.of.size() != 2) continue;
    const auto& [rank, mine] = *sequences.of.begin();
    const auto& [peer, theirs] = *sequences.of.rbegin();
    for (const auto& [number, operation] : mine) {
      const FlightOperation* const other = at(theirs, number);
      if (other == nullptr || fit(*operation, *other)) continue;
      said.push_back(fmt::format("Rank {} called {} where rank {} called {}.", rank, headline(*operation, sequences.group),
                                 peer, headline(*other, sequences.group)));
      break;
    }
  }
  return said;
}

}  // namespace apps::flight
