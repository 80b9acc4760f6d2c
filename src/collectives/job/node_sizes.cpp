#include "collectives/job/node_sizes.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "core/fail.hpp"
#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Numbers the keys by first appearance.
template <class Key>
std::vector<int> numbered(const std::vector<Key>& keys) {
  std::map<Key, int> numbers;
  std::vector<int> result;
  result.reserve(keys.size());
  for (const Key& key : keys) {
    result.push_back(numbers.emplace(key, static_cast<int>(numbers.size())).first->second);
  }
  return result;
}

// Returns how often each number occurs, if equal numbers are adjacent and in rising order; otherwise nothing.
std::vector<int> runs_of(const std::vector<int>& numbers) {
  std::vector<int> runs;
  for (const int number : numbers) {
    if (number == static_cast<int>(runs.size())) runs.push_back(0);
    if (number + 1 != static_cast<int>(runs.size())) return {};
    ++runs.back();
  }
  return runs;
}

bool all_equal(const std::vector<int>& numbers) {
  return std::adjacent_find(numbers.begin(), numbers.end(), std::not_equal_to<>()) == numbers.end();
}

}  // namespace

std::vector<int> numbered_nodes(const Network& network, const std::vector<int>& job_ranks) {
  std::vector<std::uint64_t> nodes;
  nodes.reserve(job_ranks.size());
  for (const int rank : job_ranks) nodes.push_back(network.node_of(rank));
  return numbered(nodes);
}

// The nodes of one pod are adjacent among all nodes of the job, in the order of ranks.
NodeSizes node_sizes(const Network& network, const std::vector<int>& job_ranks, int job_size) {
  NodeSizes sizes;
  const std::vector<int> runs = runs_of(numbered_nodes(network, job_ranks));
  if (runs.empty()) return sizes;
  if (all_equal(runs)) {
    sizes.ranks_per_node = runs.front();
  } else {
    sizes.uneven = runs;
  }

  const auto per_pod = static_cast<std::int64_t>(number_setting("STRETTO_NODES_PER_POD"));
  if (per_pod == 0) return sizes;
  std::vector<int> all_ranks(static_cast<std::size_t>(job_size));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const std::vector<int> nodes = numbered_nodes(network, all_ranks);
  const int count = *std::max_element(nodes.begin(), nodes.end()) + 1;
  require(count % per_pod == 0, "STRETTO_NODES_PER_POD={} does not divide the {} nodes of the job; choose a divisor.",
          per_pod, count);
  std::vector<int> pods;
  std::size_t first = 0;
  for (const int members : runs) {
    pods.push_back(static_cast<int>(nodes[static_cast<std::size_t>(job_ranks[first])] / per_pod));
    first += static_cast<std::size_t>(members);
  }
  const std::vector<int> in_pods = runs_of(numbered(pods));
  if (!in_pods.empty() && all_equal(in_pods)) sizes.nodes_per_pod = in_pods.front();
  return sizes;
}

}  // namespace stretto
