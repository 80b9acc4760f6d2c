// All-reduce with servers: ranks without a vector of their own, which add up shares of the others' vectors (Jiang et al.
// 2020, "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU Clusters"). Without them
// each of p ranks sends 2 (p-1)/p n bytes; by as many servers as ranks, n bytes. Each server sums a share c of the vector
// and each rank with a vector a share g, so that the links of all are busy equally long. Pays if servers have links of
// their own, and there are more than two other ranks. Sums are formed in rank order.
#include <cmath>

#include "collectives/plan/direct_exchange.hpp"
#include "collectives/plans/generators.hpp"

namespace stretto::plans {
namespace {

// The shares of p ranks with vectors and k servers: p g + k c = 1. A server sends and receives p c; another rank k c and
// 2 (p-1) g, which is 1 + (p-2) g.
double divisor(double p, double k) { return p * p + k * p - 2 * k; }
double share_of_server(double p, double k) { return k >= p ? 1 / k : 2 * (p - 1) / divisor(p, k); }
double share_of_rank(double p, double k) { return k >= p ? 0 : (p - k) / divisor(p, k); }

// The parts of the vector: first the servers' shares, then those of the ranks with vectors. These go in pieces of two
// rounds, one for contributions and one for sums, so that servers' pieces, of one round, are half as long.
struct Division {
  explicit Division(const PlanRequest& request)
      : pieces(request.method.pieces),
        of_servers(of_servers_in(request)),
        servers(Shares::balanced(of_servers, std::max(1, request.servers))),
        ranks(Shares::balanced(request.count - of_servers, request.size)) {}

  static std::int64_t of_servers_in(const PlanRequest& request) {
    if (request.servers >= request.size) return request.count;
    const double p = request.size, k = request.servers;
    return std::llround(static_cast<double>(request.count) * (2 * k * (p - 1)) / divisor(p, k));
  }

  int server_pieces() const { return 2 * pieces; }
  Slice of_server(int server, int piece) const {
    const Shares its = Shares::balanced(servers.length(server), server_pieces());
    return input(servers.begin(server) + its.begin(piece), its.length(piece));
  }
  Slice of_rank(int rank, int piece) const {
    const Shares its = Shares::balanced(ranks.length(rank), pieces);
    return input(of_servers + ranks.begin(rank) + its.begin(piece), its.length(piece));
  }

  int pieces;
  std::int64_t of_servers;  // elements
  Shares servers, ranks;
};

Slice as_output(const Slice& slice) { return output(slice.offset, slice.count); }

// Each round sends a piece of every server's share, and receives the sums of the pieces before. All ranks, servers among
// them, are in one circle: what is sent at the same time goes to different ones.
void add_rank(PlanBuilder& plan, const PlanRequest& request, const Division& division) {
  const int p = request.size;
  for (int round = 0; round <= division.server_pieces(); ++round) {
    const bool sends = round < division.server_pieces(), contributes = round % 2 == 0;
    const auto of = [&](int rank) { return division.of_rank(rank, round / 2); };
    const Slice own = as_output(of(request.rank));
    in_a_circle(request.rank, ranks_of(request), [&](int to, int from) {
      if (sends) plan.send(to, to >= p ? division.of_server(to - p, round) : contributes ? of(to) : own);
      if (from >= p && round > 0) plan.recv(from, as_output(division.of_server(from - p, round - 1)));
      if (from < p && sends) plan.recv(from, contributes ? slot(from, own.count) : as_output(of(from)));
    });
    if (sends && contributes && p == 1) plan.copy(of(request.rank), own);
    if (sends && contributes && p > 1) {
      plan.copy(of(request.rank), slot(request.rank, own.count));
      reduce_slots(plan, request, own);
    }
    plan.next_round();
  }
}

// Each round receives every rank's piece of this server's share, and sends the sum of the pieces before to all.
void add_server(PlanBuilder& plan, const PlanRequest& request, const Division& division) {
  const int p = request.size, server = request.rank - p;
  const std::int64_t sum_begin = p * division.of_server(server, 0).count;  // behind the slots of the longest piece
  Slice sum;
  for (int round = 0; round <= division.server_pieces(); ++round) {
    const bool receives = round < division.server_pieces();
    const std::int64_t count = receives ? division.of_server(server, round).count : 0;
    in_a_circle(request.rank, ranks_of(request), [&](int to, int from) {
      if (to < p && round > 0) plan.send(to, sum);
      if (from < p && receives) plan.recv(from, slot(from, count));
    });
    sum = scratch(sum_begin, count);
    if (p > 1) {
      reduce_slots(plan, request, sum);
    } else {
      plan.next_round();
      plan.copy(slot(0, count), sum);
    }
    plan.next_round();
    plan.use_scratch(sum_begin + count);
  }
}

}  // namespace

// (2s + 1) (alpha + n/2s (1 + (p-2) g) beta) + p max(c, g) n gamma, where s is the number of pieces; without servers
// 2 (p-1)/p n beta, and with as many as ranks or more n beta.
Cost server_set_all_reduce_cost(const PlanRequest& request) {
  const auto n = static_cast<double>(request.count);
  const double p = request.size, k = request.servers;
  if (p == 1 && k == 0) return {0, 0, 0, n};
  const double rounds = 2.0 * request.method.pieces + (k > 0 ? 1 : 0);
  const double sent = n * (k >= p ? 1 : 1 + (p - 2) * share_of_rank(p, k)) * rounds / (2.0 * request.method.pieces);
  return {rounds, rounds * std::max(p, k + p - 1), sent,
          p * n * std::max(k > 0 ? share_of_server(p, k) : 0, share_of_rank(p, k))};
}
Plan server_set_all_reduce(const PlanRequest& request) {
  PlanBuilder plan(request);
  const Division division(request);
  if (request.rank < request.size) {
    add_rank(plan, request, division);
  } else {
    add_server(plan, request, division);
  }
  return plan.finish();
}

}  // namespace stretto::plans
