#pragma once
#include <fmt/format.h>
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "core/fail.hpp"
#include "stretto/plan.hpp"

namespace stretto {

// Whether a request says where its ranks lie.
inline bool knows_nodes(const PlanRequest& request) { return request.ranks_per_node > 0 || !request.node_sizes.empty(); }

// The ranks' nodes: node by node in rank order, with the numbers of ranks that the request gives.
class Nodes {
 public:
  // Throws Error(invalid_argument) if the request does not give the nodes, or not for all of its ranks.
  static Nodes of(const PlanRequest& request) {
    if (!request.node_sizes.empty()) return listed(request);
    const int ranks = request.ranks_per_node;
    require(ranks > 0 && request.size % ranks == 0,
            "{} needs nodes of equal size, and {} ranks cannot lie on nodes of {}; give ranks_per_node or node_sizes, or "
            "choose an algorithm of one level.",
            name(request.method.algorithm), request.size, ranks);
    std::vector<int> firsts(request.size / ranks + 1);
    for (std::size_t node = 0; node < firsts.size(); ++node) firsts[node] = static_cast<int>(node) * ranks;
    return Nodes(std::move(firsts));
  }

  // Every rank on a node of its own.
  static Nodes apart(int ranks) {
    std::vector<int> firsts(ranks + 1);
    std::iota(firsts.begin(), firsts.end(), 0);
    return Nodes(std::move(firsts));
  }

  int count() const { return static_cast<int>(firsts_.size()) - 1; }
  int first(int node) const { return firsts_[node]; }  // `node` may be count(), one after the last
  int size(int node) const { return first(node + 1) - first(node); }
  int node_of(int rank) const {
    return static_cast<int>(std::upper_bound(firsts_.begin(), firsts_.end(), rank) - firsts_.begin()) - 1;
  }
  int local(int rank) const { return rank - first(node_of(rank)); }
  int largest() const { return extreme(std::max<int>); }  // the most ranks of a node
  int smallest() const { return extreme(std::min<int>); }
  bool alike() const { return largest() == smallest(); }  // all of the same size

 private:
  explicit Nodes(std::vector<int> firsts) : firsts_(std::move(firsts)) {}
  static Nodes listed(const PlanRequest& request) {
    require(request.ranks_per_node == 0, "Give ranks_per_node, {}, or node_sizes, not both.", request.ranks_per_node);
    std::vector<int> firsts;
    firsts.reserve(request.node_sizes.size() + 1);
    firsts.push_back(0);
    for (const int ranks : request.node_sizes) {
      require(ranks > 0 && ranks <= request.size - firsts.back(),
              "node_sizes {} are not of {} ranks; give each node's ranks, 1 or more, which make up the group.",
              fmt::join(request.node_sizes, ", "), request.size);
      firsts.push_back(firsts.back() + ranks);
    }
    require(firsts.back() == request.size,
            "node_sizes {} are not of {} ranks; give each node's ranks, 1 or more, which make up the group.",
            fmt::join(request.node_sizes, ", "), request.size);
    return Nodes(std::move(firsts));
  }

  int extreme(const int& (*choose)(const int&, const int&)) const {
    int ranks = size(0);
    for (int node = 1; node < count(); ++node) ranks = choose(ranks, size(node));
    return ranks;
  }

  std::vector<int> firsts_;  // the first rank of each node, then the number of ranks
};

}  // namespace stretto
