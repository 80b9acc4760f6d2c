#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "collectives/plans/levels/levels.hpp"

// Decides which rank carries which data between nodes. Nodes may have different numbers of ranks. A vector has as many
// slices as the largest node has ranks, and a rank of a smaller node carries several slices, one after the other. So two
// slices wait for each other only if one rank carries both. (If slices were cut wherever any node's shares end, they would
// be even, but each slice would wait for the one before it, on one node or another.) For blocks, the block of a node's b-th
// rank is carried by rank b mod m on a node of m ranks.
namespace stretto::plans {

// The slices of a vector.
class Slices {
 public:
  Slices(const Nodes& nodes, int rank, std::int64_t count)
      : nodes_(nodes),
        slices_(nodes.largest()),
        first_(first(nodes.node_of(rank), nodes.local(rank))),
        end_(first(nodes.node_of(rank), nodes.local(rank) + 1)),
        shares_(Shares::balanced(count, slices_)) {}

  // The slices of this rank are those from first() to before end().
  int first() const { return first_; }
  int end() const { return end_; }
  std::int64_t own_begin() const { return begin(first_); }
  std::int64_t own_length() const { return begin(end_) - begin(first_); }

  std::int64_t begin(int slice) const { return shares_.begin(slice); }
  std::int64_t length(int slice) const { return shares_.length(slice); }
  std::vector<std::int64_t> counts(int node) const {  // by local rank
    std::vector<std::int64_t> counts(nodes_.size(node));
    std::int64_t begins = 0;
    for (int local = 0; local < nodes_.size(node); ++local) {
      const std::int64_t ends = begin(first(node, local + 1));
      counts[local] = ends - begins;
      begins = ends;
    }
    return counts;
  }
  std::vector<int> carriers(int slice) const {  // by node
    std::vector<int> carriers(nodes_.count());
    for (int node = 0; node < nodes_.count(); ++node) carriers[node] = nodes_.first(node) + local_carrier(node, slice);
    return carriers;
  }

 private:
  // `local` may be one after the node's last rank.
  int first(int node, int local) const { return static_cast<int>(part_begin(slices_, nodes_.size(node), local)); }
  // The inverse: the local rank for which first(local) <= slice < first(local + 1).
  int local_carrier(int node, int slice) const {
    const int least = slices_ / nodes_.size(node);      // slices of a rank; the first ranks carry one more,
    const int with_more = slices_ % nodes_.size(node);  // and there are this many of them,
    const int before_others = with_more * (least + 1);  // which carry this many slices
    return slice < before_others ? slice / (least + 1) : with_more + (slice - before_others) / least;
  }

  const Nodes& nodes_;
  int slices_;
  int first_, end_;
  Shares shares_;
};

// The pieces of all ranks' blocks. In scratch, the blocks that one rank of this node carries lie side by side.
class Blocks {
 public:
  Blocks(const Nodes& nodes, int rank, const Shares& shares, const Piece& piece)
      : nodes_(nodes), local_(nodes.local(rank)), shares_(shares), piece_(piece) {
    const int ranks = nodes.size(nodes.node_of(rank));
    carried_.resize(static_cast<std::size_t>(ranks));
    places_.resize(static_cast<std::size_t>(nodes.first(nodes.count())));
    for (int node = 0; node < nodes.count(); ++node) {
      for (int local = 0; local < nodes.size(node); ++local) carried_[local % ranks].push_back(nodes.first(node) + local);
    }
    for (const auto& owners : carried_) {
      begins_.push_back(total_);
      for (const int owner : owners) {
        places_[owner] = total_;
        total_ += length(owner);
      }
    }
    begins_.push_back(total_);
  }

  const std::vector<int>& carried(int local) const { return carried_[local]; }
  int carrier(int node, int owner) const { return nodes_.first(node) + nodes_.local(owner) % nodes_.size(node); }
  std::int64_t total() const { return total_; }
  std::int64_t place(int owner) const { return places_[owner]; }
  std::int64_t begin(int local) const { return begins_[local]; }
  std::int64_t length(int owner) const { return piece_.length(shares_.length(owner)); }
  std::vector<std::int64_t> counts() const {  // by local rank: elements that the ranks of the node carry
    std::vector<std::int64_t> counts;
    for (std::size_t local = 0; local + 1 < begins_.size(); ++local) counts.push_back(begins_[local + 1] - begins_[local]);
    return counts;
  }
  std::vector<std::int64_t> carried_counts() const {  // elements of each block that this rank carries
    std::vector<std::int64_t> counts;
    for (const int owner : carried(local_)) counts.push_back(length(owner));
    return counts;
  }
  // Copies between the whole blocks, in rank order, and their pieces here; one of `from` and `to` is scratch.
  std::vector<Step> copies(const Slice& from, const Slice& to) const {
    std::vector<Step> steps;
    for (int owner = 0; owner < static_cast<int>(places_.size()); ++owner) {
      const std::int64_t at = shares_.begin(owner) + piece_.begin(shares_.length(owner));
      const auto in = [&](const Slice& side) {
        return Slice{side.buffer, side.buffer == Buffer::scratch ? places_[owner] : at, length(owner)};
      };
      steps.push_back({StepKind::copy, false, -1, in(from), in(to)});
    }
    return steps;
  }

 private:
  const Nodes& nodes_;
  int local_;
  Shares shares_;
  Piece piece_;
  std::vector<std::vector<int>> carried_;  // by local rank
  std::vector<std::int64_t> places_;       // by owner
  std::vector<std::int64_t> begins_;       // by local rank, and the total
  std::int64_t total_ = 0;
};

}  // namespace stretto::plans
