#include "overlap/tracing/trace_arrows.hpp"

#include <xxhash.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace stretto {
namespace {

std::uint64_t hash_of(const std::vector<std::uint64_t>& words) {
  return XXH3_64bits(words.data(), words.size() * sizeof words[0]);
}

// Gives each operation of a rank the same key as the operation's other ranks do.
class OperationKeys {
 public:
  explicit OperationKeys(int rank) : rank_(rank) {}

  std::uint64_t next(const Record& record) {
    const Partners& partners = *record.partners;
    std::vector<std::uint64_t> words{partners.group_id};
    words.insert(words.end(), partners.members.begin(), partners.members.end());
    if (record.collective == Collective::send) add_message(words, rank_, partners.sends_to);
    if (record.collective == Collective::recv) add_message(words, partners.receives_from, rank_);
    const std::uint64_t sequence = hash_of(words);
    return hash_of({sequence, counts_[sequence]++});
  }

 private:
  // A message of no elements and a message to the rank itself have no partners.
  static std::uint64_t word(const std::vector<int>& ranks) {
    return ranks.empty() ? ~std::uint64_t{0} : static_cast<std::uint64_t>(ranks.front());
  }
  static std::uint64_t word(int rank) { return static_cast<std::uint64_t>(rank); }
  template <class From, class To>
  static void add_message(std::vector<std::uint64_t>& words, const From& from, const To& to) {
    words.insert(words.end(), {word(from), word(to)});
  }

  int rank_;
  std::map<std::uint64_t, std::uint64_t> counts_;  // operations so far, by the hash of group and partners
};

bool part_before(const OperationPart& a, const OperationPart& b) {
  return std::tie(a.key, a.rank) < std::tie(b.key, b.rank);
}
bool transmission_before(const Transmission& a, const Transmission& b) {
  return std::tie(a.key, a.from, a.to) < std::tie(b.key, b.from, b.to);
}

}  // namespace

RankArrows arrows_of(int rank, const std::vector<Record>& operations, const std::vector<TraceSlice>& slices) {
  std::map<const Record*, const TraceSlice*> slice_of;
  for (const TraceSlice& slice : slices) {
    if (slice.record != nullptr) slice_of[slice.record] = &slice;
  }
  OperationKeys keys(rank);
  RankArrows arrows;
  for (const Record& record : operations) {
    if (record.partners == nullptr) continue;  // the record is not of a communicator's operation
    const std::uint64_t key = keys.next(record);
    const auto place = slice_of.find(&record);
    if (place == slice_of.end()) continue;
    const TraceSlice& slice = *place->second;
    arrows.parts.push_back({key, slice.begin, slice.end, rank, slice.track});
    for (const int to : record.partners->sends_to) arrows.transmissions.push_back({key, rank, to});
    for (const int from : record.partners->receives_from) arrows.transmissions.push_back({key, from, rank});
  }
  return arrows;
}

std::vector<TraceArrow> pair_up(RankArrows all) {
  std::sort(all.parts.begin(), all.parts.end(), part_before);
  std::sort(all.transmissions.begin(), all.transmissions.end(), transmission_before);
  all.transmissions.erase(std::unique(all.transmissions.begin(), all.transmissions.end()), all.transmissions.end());
  const auto find = [&](std::uint64_t key, int rank) -> const OperationPart* {
    const OperationPart wanted{key, 0, 0, rank, 0};
    const auto place = std::lower_bound(all.parts.begin(), all.parts.end(), wanted, part_before);
    return place != all.parts.end() && !part_before(wanted, *place) ? &*place : nullptr;
  };
  std::vector<TraceArrow> arrows;
  for (const Transmission& each : all.transmissions) {
    const OperationPart* const from = find(each.key, each.from);
    const OperationPart* const to = find(each.key, each.to);
    if (from != nullptr && to != nullptr) arrows.push_back({*from, *to});
  }
  return arrows;
}

}  // namespace stretto
