#pragma once
#include "stretto/plan.hpp"

// The cost of a collective: as numbers of messages and elements, which do not depend on the machine, and as seconds on a
// given machine.
namespace stretto {

// The cost of the critical path of a collective, over all ranks, out of place.
struct Cost {
  double rounds = 0;     // rounds on the path
  double messages = 0;   // messages sent one after the other
  double sent = 0;       // elements sent one after the other
  double work = 0;       // elements reduced or copied locally
  double packed = 0;     // bytes of quantized records sent, in addition to `sent`
  double quantized = 0;  // elements quantized or dequantized; counted once if one step does both
};
constexpr Cost operator+(const Cost& a, const Cost& b) {
  return {a.rounds + b.rounds, a.messages + b.messages, a.sent + b.sent,
          a.work + b.work,     a.packed + b.packed,     a.quantized + b.quantized};
}

// The cost of one route between ranks (Hockney 1994; the overhead is that of LogGP, Alexandrov et al. 1995).
struct LinkCost {
  double alpha = 0;      // latency: seconds per round, without its bytes
  double overhead = 0;   // seconds per message for which sender and receiver are busy, without its bytes
  double beta = 0;       // seconds per byte sent
  double gamma = 0;      // seconds per byte reduced or copied
  double quantize = 0;   // seconds per element quantized or dequantized
  double lane_gain = 0;  // relative gain in bandwidth each time the number of lanes doubles: 0.1 is 10%
};
STRETTO_API double seconds(const Cost& cost, const LinkCost& link, double bytes_per_element, int lanes = 1);

// Returns the cost of the plan that make_plan(request) builds, by the formula of its algorithm. For two_level and
// three_level, the cost is the sum over the levels. The cost does not depend on request.rank. Throws as make_plan()
// does.
STRETTO_API Cost cost_of(const PlanRequest& request);
struct LevelCost {
  // The cost inside nodes, and the cost between nodes (for three_level, including the cost between pods). For algorithms
  // of one level, `between` is zero, except for a quantized collective whose request says how ranks lie on nodes.
  Cost inside, between;
  int senders = 1;  // number of ranks of a node that send between nodes at the same time
};
STRETTO_API LevelCost cost_by_level(const PlanRequest& request);

// Predicts the seconds of a request. `ports` is the number of network ports of a node. The model:
// - Algorithms of one level use the route `between`. In direct, pairwise, bruck, one_shot, two_shot, recursive_doubling
//   and recursive_halving_doubling, all ranks of a node send to other nodes at the same time: they share the bandwidth
//   of the node's ports for the bytes that leave the node.
// - In two_level, all ranks of a node send through the node's ports at the same time. They share the bandwidth, which
//   grows with the number of senders as it does with lanes (lane_gain). In collectives with a root, only one rank of
//   each node sends.
// - If the request says how ranks lie on nodes, the cost of a quantized collective is counted by level, even for direct
//   and two_shot. Local work, including quantization, then costs what the route `inside` gives. Quantization, messages
//   inside nodes and messages between nodes form a pipeline of pieces: the slowest of the three hides the other two,
//   except for one piece's way through all three.
STRETTO_API double seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between,
                           double bytes_per_element, int ports);

}  // namespace stretto
