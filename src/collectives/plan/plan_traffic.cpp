// The bytes and partners of a plan.
#include <algorithm>
#include <set>

#include "stretto/plan.hpp"

namespace stretto {
namespace {

// Calls visit(peer, slice) for each slice that a step moves between its rank and another one; twice if the slice goes both
// ways.
template <class Visit>
void for_each_transfer(const Plan& plan, Visit visit) {
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      const int rank = plan.request.rank;
      if (step.kind == StepKind::send || (step.kind == StepKind::read && step.peer != rank)) visit(step.peer, step.source);
      if (step.kind != StepKind::read_reduce && step.kind != StepKind::copy_to_all) continue;
      for (int peer = 0; peer < plan.request.size; ++peer) {
        if (peer == rank) continue;
        // The destination is read at the peer. (The source of a copy_to_all is read at its owner, whose own copy does not
        // count.)
        visit(peer, step.destination);
        const bool writes = step.peer == everybody || step.peer == peer;
        if (step.kind == StepKind::read_reduce && writes) visit(peer, step.destination);
      }
    }
  }
}

std::int64_t bytes_of(const Slice& slice, std::int64_t element_bytes) {
  return slice.buffer == Buffer::packed ? packed_bytes(slice.format, slice.count) : slice.count * element_bytes;
}

// Calls visit(from, to) for every step that moves data between the plan's rank and another one.
template <class Visit>
void for_each_partner(const Plan& plan, Visit visit) {
  const int rank = plan.request.rank;
  const auto with_all = [&](auto visit_one) {
    for (int peer = 0; peer < plan.request.size; ++peer) visit_one(peer);
  };
  for (const Lane& lane : plan.lanes) {
    for (const Step& step : lane.steps) {
      switch (step.kind) {
        case StepKind::send: visit(rank, step.peer); break;
        case StepKind::recv:
        case StepKind::recv_reduce:
        case StepKind::read: visit(step.peer, rank); break;
        case StepKind::read_reduce:
          with_all([&](int peer) {
            visit(peer, rank);
            if (step.peer == everybody || step.peer == peer) visit(rank, peer);
          });
          break;
        case StepKind::copy_to_all:
          visit(step.peer, rank);
          with_all([&](int peer) { visit(rank, peer); });
          break;
        default: break;  // a step in this rank's memory, or a signal, which moves no data
      }
    }
  }
}

}  // namespace

std::vector<int> Plan::sends_to() const {
  std::set<int> peers;
  for_each_partner(*this, [&](int from, int to) {
    if (from == request.rank && to != request.rank) peers.insert(to);
  });
  return {peers.begin(), peers.end()};
}

std::vector<int> Plan::receives_from() const {
  std::set<int> peers;
  for_each_partner(*this, [&](int from, int to) {
    if (to == request.rank && from != request.rank) peers.insert(from);
  });
  return {peers.begin(), peers.end()};
}

std::int64_t Plan::elements_sent() const {
  std::int64_t sum = 0;
  for_each_transfer(*this, [&](int, const Slice& slice) { sum += slice.count; });
  return sum;
}

std::int64_t Plan::bytes_sent(std::int64_t element_bytes) const {
  std::int64_t sum = 0;
  for_each_transfer(*this, [&](int, const Slice& slice) { sum += bytes_of(slice, element_bytes); });
  return sum;
}

std::int64_t Plan::bytes_between_nodes(std::int64_t element_bytes, const std::vector<int>& nodes) const {
  std::int64_t sum = 0;
  for_each_transfer(*this, [&](int peer, const Slice& slice) {
    if (nodes[peer] != nodes[request.rank]) sum += bytes_of(slice, element_bytes);
  });
  return sum;
}

int Plan::rounds() const {
  std::size_t most = 0;
  for (const Lane& lane : lanes) most = std::max(most, lane.round_ends.size());
  return static_cast<int>(most);
}

}  // namespace stretto
