// Counts of elements, and the checks of requests that need no algorithm.
#include <climits>

#include "collectives/plan/plan_builder.hpp"
#include "core/fail.hpp"
#include "stretto/plan.hpp"

namespace stretto {

bool can_be_in_place(Collective collective) {
  return collective != Collective::all_to_all && collective != Collective::barrier && collective != Collective::send &&
         collective != Collective::recv;
}

std::int64_t input_count(const PlanRequest& request) {
  const bool at_root = request.rank == request.root;
  if (request.rank >= request.size) return 0;  // a server
  switch (request.collective) {
    case Collective::recv: return 0;
    case Collective::broadcast: return at_root ? request.count : 0;
    case Collective::scatter: return at_root ? Shares::of(request).total() : 0;
    case Collective::reduce_scatter:
    case Collective::all_to_all: return Shares::of(request).total();
    case Collective::all_gather:
    case Collective::gather: return Shares::of(request).length(request.rank);
    default: return request.count;
  }
}

std::int64_t output_count(const PlanRequest& request) {
  const bool at_root = request.rank == request.root;
  if (request.rank >= request.size) return 0;
  switch (request.collective) {
    case Collective::send: return 0;
    case Collective::reduce: return at_root ? request.count : 0;
    case Collective::gather: return at_root ? Shares::of(request).total() : 0;
    case Collective::all_gather: return Shares::of(request).total();
    case Collective::all_to_all:
      return request.counts.empty() ? request.count * request.size : Shares::listed(request.receive_counts).total();
    case Collective::reduce_scatter:
    case Collective::scatter: return Shares::of(request).length(request.rank);
    default: return request.count;
  }
}

bool rounds_once(Algorithm algorithm) {
  return algorithm == Algorithm::one_shot || algorithm == Algorithm::two_shot || algorithm == Algorithm::direct ||
         algorithm == Algorithm::server_set || shares_memory(algorithm);
}

// All of them reduce in rank order.
bool is_deterministic(Algorithm algorithm) { return rounds_once(algorithm); }

void check_shape(const PlanRequest& request) {
  const char* const what = name(request.collective);
  require(request.servers >= 0 && (request.servers == 0 || request.collective == Collective::all_reduce),
          "{} with {} servers; all_reduce takes 0 or more, others none.", what, request.servers);
  require(request.servers == 0 || request.quantized == QuantizedFormat::none,
          "{} with {} servers cannot be quantized; leave out the format {}, or the servers.", what, request.servers,
          name(request.quantized));
  require(request.servers == 0 || !shares_memory(request.method.algorithm),
          "{} with {} servers cannot be done by {}, in which all ranks have vectors; choose {}.", what, request.servers,
          name(request.method.algorithm), name(Algorithm::server_set));
  require(request.size >= 1 && request.servers <= INT_MAX - request.size, "{} over {} ranks and {} servers is impossible.",
          what, request.size, request.servers);
  require(request.rank >= 0 && request.rank < ranks_of(request), "Rank {} is outside a group of {}.", request.rank,
          ranks_of(request));
  require(request.root >= 0 && request.root < request.size, "{} with root or peer {} in a group of {}; choose 0..{}.", what,
          request.root, request.size, request.size - 1);
  require(request.count >= 0, "{} of {} elements; a count cannot be negative.", what, request.count);
  require(request.receive_counts.size() == (request.collective == Collective::all_to_all ? request.counts.size() : 0),
          "{} got {} counts and {} receive counts; only all_to_all takes both, as many of one as of the other.", what,
          request.counts.size(), request.receive_counts.size());
  require(request.counts.empty() || counts_shares(request.collective), "{} has one count, not {}.", what,
          request.counts.size());
  // With this limit, offsets of elements and of bytes fit into 64 bits.
  constexpr std::int64_t most = std::int64_t{1} << 56;
  for (const auto* counts : {&request.counts, &request.receive_counts}) {
    if (counts->empty()) continue;
    require(static_cast<int>(counts->size()) == request.size && request.count == 0,
            "{} got {} counts and the count {} in a group of {}; give one count for each rank, or one for all.", what,
            counts->size(), request.count, request.size);
    std::int64_t sum = 0;
    for (const std::int64_t count : *counts) {
      require(count >= 0, "{} of {} elements; a count cannot be negative.", what, count);
      require(!__builtin_add_overflow(sum, count, &sum) && sum <= most,
              "{} over {} ranks got counts of more than {} elements together, which is more than any memory.", what,
              request.size, most);
    }
  }
  // Some algorithms reduce all ranks' vectors side by side.
  const bool all_ranks = counts_shares(request.collective) || reduces(request.collective);
  std::int64_t together = 0;
  require(!__builtin_mul_overflow(request.count, all_ranks ? request.size : 1, &together) && together <= most,
          "{} of {} elements over {} ranks: that is more than {} elements together, and more than any memory.", what,
          request.count, request.size, most);
}

}  // namespace stretto
