#include "collectives/proof/root_proofs.hpp"

#include <algorithm>

namespace stretto {
namespace {

bool same(const Slice& a, const Slice& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.count == b.count && a.format == b.format;
}

// A peer below 0 is not a rank, and is not renamed.
bool same_but_for_ranks(const Step& a, const Step& b, int moved, int size) {
  const int peer = a.peer < 0 ? a.peer : (a.peer + moved) % size;
  return peer == b.peer && a.kind == b.kind && a.finishes == b.finishes && same(a.source, b.source) &&
         same(a.destination, b.destination) && a.hop == b.hop && a.residual == b.residual && a.vectors == b.vectors &&
         a.apart == b.apart;
}

bool same_but_for_ranks(const Plan& a, const Plan& b, int moved) {
  const int size = a.request.size;
  const auto same_lane = [&](const Lane& x, const Lane& y) {
    return x.round_ends == y.round_ends &&
           std::equal(x.steps.begin(), x.steps.end(), y.steps.begin(), y.steps.end(),
                      [&](const Step& s, const Step& t) { return same_but_for_ranks(s, t, moved, size); });
  };
  return a.scratch_count == b.scratch_count && a.packed_counts == b.packed_counts &&
         a.residual_counts == b.residual_counts &&
         std::equal(a.lanes.begin(), a.lanes.end(), b.lanes.begin(), b.lanes.end(), same_lane);
}

// The parts of a request that verify() reads, apart from the rank and the root.
bool same_call(const PlanRequest& a, const PlanRequest& b) {
  return a.collective == b.collective && a.method.algorithm == b.method.algorithm && a.size == b.size &&
         a.servers == b.servers && a.count == b.count && a.counts == b.counts && a.receive_counts == b.receive_counts &&
         a.quantized == b.quantized && a.quantized_result == b.quantized_result;
}

// Whether the plans are the proved ones with every rank q renamed to q + moved. moved is the distance between the roots.
bool is_rotation(const std::vector<Plan>& proved, const std::vector<Plan>& plans) {
  if (plans.size() != proved.size()) return false;
  const int size = static_cast<int>(plans.size());
  const int root = proved[0].request.root;
  const int moved = (plans[0].request.root - root + size) % size;
  for (int i = 0; i < size; ++i) {  // the root first, because plans differ there most often
    const int rank = (root + i) % size;
    const int renamed = (rank + moved) % size;
    const PlanRequest& request = plans[renamed].request;
    if (!same_call(proved[rank].request, request) || request.rank != renamed || request.root != plans[0].request.root ||
        !same_but_for_ranks(proved[rank], plans[renamed], moved)) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::string> RootProofs::prove(std::vector<Plan> plans) {
  const PlanRequest& request = plans[0].request;
  const bool in_rank_order = request.collective == Collective::reduce && is_deterministic(request.method.algorithm);
  const bool may_rotate =
      (request.collective == Collective::broadcast || request.collective == Collective::reduce) && !in_rank_order;
  if (may_rotate && std::any_of(proved_.begin(), proved_.end(),
                                [&](const std::vector<Plan>& proved) { return is_rotation(proved, plans); })) {
    return std::nullopt;
  }
  ++verified_;
  if (auto fault = verify_all_forms(plans)) return fault;
  // On nodes of m ranks, m roots stand for all. More are not kept, to save memory.
  constexpr std::size_t most_kept = 32;
  if (may_rotate && proved_.size() < most_kept) proved_.push_back(std::move(plans));
  return std::nullopt;
}

}  // namespace stretto
