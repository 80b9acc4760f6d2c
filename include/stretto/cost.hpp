#pragma once
#include "stretto/plan.hpp"

// The cost of a collective: in numbers that do not depend on the machine, and in seconds on a given machine.
namespace stretto {

// The longest path through a collective, over all ranks, out of place.
struct Cost {
  double rounds = 0;     // rounds that wait for each other
  double messages = 0;   // messages sent one after the other
  double sent = 0;       // elements sent one after the other
  double work = 0;       // elements reduced or copied locally
  double packed = 0;     // bytes of records sent, in addition to `sent`
  double quantized = 0;  // elements quantized, dequantized, or both in one step
};
constexpr Cost operator+(const Cost& a, const Cost& b) {
  return {a.rounds + b.rounds, a.messages + b.messages, a.sent + b.sent,
          a.work + b.work,     a.packed + b.packed,     a.quantized + b.quantized};
}

// The cost of one route between ranks (Hockney 1994; the overhead is LogGP's, Alexandrov et al. 1995).
struct LinkCost {
  double alpha = 0;      // seconds per round, without its bytes
  double overhead = 0;   // seconds per message for which its sender and its receiver are busy, without its bytes
  double beta = 0;       // seconds per byte sent
  double gamma = 0;      // seconds per byte reduced or copied
  double quantize = 0;   // seconds per element quantized or dequantized
  double lane_gain = 0;  // relative speed-up of bytes when the lanes are doubled: 0.1 is 10%
};
STRETTO_API double seconds(const Cost& cost, const LinkCost& link, double bytes_per_element, int lanes = 1);

// Returns the cost of the plan that make_plan(request) builds, by its algorithm's formula. The cost does not depend on
// request.rank. Throws as make_plan() does. For two_level and three_level it is the sum over the levels.
STRETTO_API Cost cost_of(const PlanRequest& request);
struct LevelCost {
  // Inside nodes, and between nodes (with three_level, also between pods). For algorithms of one level, between is
  // zero. Quantized collectives on ranks that lie on nodes have both.
  Cost inside, between;
  int senders = 1;  // ranks of a node that send between nodes at the same time
};
STRETTO_API LevelCost cost_by_level(const PlanRequest& request);

// Predicted seconds for a request. `ports` is the number of network ports of a node. The model:
// - Algorithms of one level use the route between nodes. If all ranks of a node send across at the same time (direct,
//   pairwise, bruck, one_shot, two_shot, recursive_doubling, recursive_halving_doubling), they share that route, except
//   for what stays inside the node.
// - In two_level all ranks of a node send at once, through its ports. They share the bandwidth, but gain as lanes do.
//   With a root, only one rank of each node sends.
// - Quantized collectives are counted by level, also by direct and two_shot, if the request says how ranks lie. Local
//   work costs what it does on the inside route. Their pieces overlap: the slowest of quantization, messages inside and
//   messages between hides the other two, except for one piece's way through all three.
STRETTO_API double seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between,
                           double bytes_per_element, int ports);

}  // namespace stretto
