#include "perf/cases.hpp"

#include <algorithm>
#include <numeric>

#include "common/fail.hpp"

namespace perf {

using stretto::Collective;

namespace {

// With any number of ranks, every third rank gets nothing and the others get different shares.
std::int64_t share_weight(int rank) { return (rank + 1) % 3; }
std::int64_t pair_weight(int from, int to) { return (from + 2 * to + 1) % 3; }

std::int64_t sum(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::vector<std::int64_t> uneven_shares(int ranks, std::int64_t whole) {
  std::vector<std::int64_t> weights;
  weights.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) weights.push_back(share_weight(rank));
  const std::int64_t total = sum(weights);
  for (std::int64_t& weight : weights) weight = whole / total * weight;
  return weights;
}

// The rank that sends or receives most moves the whole.
std::vector<std::int64_t> uneven_pairs(int ranks, std::int64_t whole) {
  std::vector<std::int64_t> weights;
  std::int64_t most = 0;
  for (int one = 0; one < ranks; ++one) {
    std::int64_t sends = 0;
    std::int64_t receives = 0;
    for (int other = 0; other < ranks; ++other) {
      weights.push_back(pair_weight(one, other));
      sends += pair_weight(one, other);
      receives += pair_weight(other, one);
    }
    most = std::max({most, sends, receives});
  }
  for (std::int64_t& weight : weights) weight = whole / most * weight;
  return weights;
}

std::int64_t total(const Case& test_case) {
  return test_case.test->uneven ? sum(test_case.counts) : test_case.count * test_case.ranks;
}

std::int64_t before(const Case& test_case, int rank) {
  std::int64_t elements = 0;
  for (int earlier = 0; earlier < rank; ++earlier) elements += test_case.share(earlier);
  return elements;
}

}  // namespace

const std::vector<Test>& all_tests() {
  static const std::vector<Test> tests = {
      {"all_reduce", Collective::all_reduce},
      {"reduce_scatter", Collective::reduce_scatter},
      {"all_gather", Collective::all_gather},
      {"all_to_all", Collective::all_to_all},
      {"broadcast", Collective::broadcast},
      {"reduce", Collective::reduce},
      {"gather", Collective::gather},
      {"scatter", Collective::scatter},
      {"sendrecv", Collective::send},
      {"barrier", Collective::barrier},
      {"all_to_all_v", Collective::all_to_all, true},
      {"all_gather_v", Collective::all_gather, true},
      {"reduce_scatter_v", Collective::reduce_scatter, true},
      {"gather_v", Collective::gather, true},
      {"scatter_v", Collective::scatter, true},
  };
  return tests;
}

const Test& test_from_name(const std::string& name) {
  std::vector<const char*> names;
  for (const Test& test : all_tests()) {
    if (name == test.name) return test;
    names.push_back(test.name);
  }
  fail(stretto::ErrorCode::invalid_argument, "'{}' is no collective; choose all or one of {}.", name,
       fmt::join(names, ", "));
}

Case Case::of_bytes(const Test& test, int ranks, int root, stretto::DType dtype, stretto::ReduceOp op, std::int64_t bytes,
                    int servers) {
  Case made{&test, ranks, root, dtype, op, 0, {}, servers};
  const std::int64_t whole = bytes / static_cast<std::int64_t>(size_of(dtype));
  if (test.uneven) {
    made.counts = test.collective == Collective::all_to_all ? uneven_pairs(ranks, whole) : uneven_shares(ranks, whole);
  } else if (test.collective != Collective::barrier) {
    made.count = counts_shares(test.collective) ? whole / ranks : whole;
  }
  return made;
}

std::int64_t Case::input_count(int rank) const {
  if (rank >= ranks) return 0;
  switch (test->collective) {
    case Collective::broadcast: return rank == root ? count : 0;
    case Collective::reduce_scatter: return total(*this);
    case Collective::scatter: return rank == root ? total(*this) : 0;
    case Collective::all_gather:
    case Collective::gather: return share(rank);
    case Collective::all_to_all: {
      std::int64_t elements = 0;
      for (int to = 0; to < ranks; ++to) elements += sent(rank, to);
      return elements;
    }
    default: return count;
  }
}

std::int64_t Case::output_count(int rank) const {
  std::int64_t elements = 0;
  for (const SourceRange& part : expected(rank)) elements += part.count;
  return elements;
}

std::int64_t Case::input_offset(int rank) const {
  const bool inside = test->collective == Collective::all_gather || (test->collective == Collective::gather && rank == root);
  return inside ? before(*this, rank) : 0;
}

std::int64_t Case::output_offset(int rank) const {
  const bool inside =
      test->collective == Collective::reduce_scatter || (test->collective == Collective::scatter && rank == root);
  return inside ? before(*this, rank) : 0;
}

std::vector<SourceRange> Case::expected(int rank) const {
  std::vector<SourceRange> parts;
  if (rank >= ranks) return parts;
  switch (test->collective) {
    case Collective::all_reduce: return {{SourceRange::reduced, 0, count}};
    case Collective::reduce:
      if (rank == root) parts.push_back({SourceRange::reduced, 0, count});
      return parts;
    case Collective::reduce_scatter: return {{SourceRange::reduced, before(*this, rank), share(rank)}};
    case Collective::broadcast: return {{root, 0, count}};
    case Collective::scatter: return {{root, before(*this, rank), share(rank)}};
    case Collective::gather:
      if (rank != root) return parts;
      [[fallthrough]];
    case Collective::all_gather:
      for (int from = 0; from < ranks; ++from) parts.push_back({from, 0, share(from)});
      return parts;
    case Collective::all_to_all:
      for (int from = 0; from < ranks; ++from) {
        std::int64_t first = 0;
        for (int to = 0; to < rank; ++to) first += sent(from, to);
        parts.push_back({from, first, sent(from, rank)});
      }
      return parts;
    case Collective::send: return {{(rank + ranks - 1) % ranks, 0, count}};
    default: return parts;
  }
}

std::int64_t Case::bytes() const {
  std::int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max({most, input_count(rank), output_count(rank)});
  return most * static_cast<std::int64_t>(size_of(dtype));
}

double Case::bus_factor() const {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (test->collective == Collective::all_reduce) return 2 * others;
  return counts_shares(test->collective) ? others : 1;
}

}  // namespace perf
