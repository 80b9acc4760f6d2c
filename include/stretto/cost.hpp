#pragma once
#include "stretto/plan.hpp"

// What a collective costs, in numbers that do not depend on the machine, and on a machine, in seconds.
namespace stretto {

// The longest way through a collective, over all ranks, input and output apart: how many rounds wait for each other, how
// many messages and elements are sent one after the other, and on how many elements local work is done (reducing or
// copying).
struct Cost {
  double rounds = 0;
  double messages = 0;
  double sent = 0;
  double work = 0;
  double packed = 0;     // bytes sent of records, beside the elements sent
  double quantized = 0;  // elements packed, unpacked or both in one
};
constexpr Cost operator+(const Cost& a, const Cost& b) {
  return {a.rounds + b.rounds, a.messages + b.messages, a.sent + b.sent,
          a.work + b.work,     a.packed + b.packed,     a.quantized + b.quantized};
}

// One route between ranks (Hockney 1994, with LogGP's overhead of Alexandrov et al. 1995 apart from the latency).
struct LinkCost {
  double alpha = 0;      // seconds that a round lasts beside its bytes
  double overhead = 0;   // seconds that a message keeps its sender and its receiver busy beside its bytes
  double beta = 0;       // seconds a byte sent
  double gamma = 0;      // seconds a byte reduced or copied
  double quantize = 0;   // seconds an element packed or unpacked
  double lane_gain = 0;  // how much faster bytes go with twice the lanes: 0.1 is 10%
};
STRETTO_API double seconds(const Cost& cost, const LinkCost& link, double bytes_per_element, int lanes = 1);

// The formula that stands over the request's generator; of its rank, only the group's size matters. Throws as make_plan()
// does. For two_level this is the sum over both levels; cost_by_level() tells them apart.
STRETTO_API Cost cost_of(const PlanRequest& request);
struct LevelCost {
  // Of nodes; between is zero for all algorithms of one level (but for what is quantized on ranks that lie on nodes), and
  // includes what is above it.
  Cost inside, between;
  int senders = 1;  // ranks of a node that send between nodes at once
};
STRETTO_API LevelCost cost_by_level(const PlanRequest& request);

// On ranks that lie on nodes, as the request says. Algorithms of one level go by the route between nodes; where all ranks
// send to all, or ever farther, a node's share it, but for what stays inside. In two_level all ranks of a node send at once,
// through as many ports as the node has: they share its bandwidth, but gain as so many lanes do. With a root, one rank of
// each node sends, alone. Quantized collectives are counted by level on one level, too, where the request says how ranks
// lie; all local work costs what it does on the route inside. Their pieces overlap: whichever takes longest, packing and
// unpacking, messages inside or messages between, hides the others but for one piece's way through them.
STRETTO_API double seconds(const PlanRequest& request, const LinkCost& inside, const LinkCost& between,
                           double bytes_per_element, int ports);

}  // namespace stretto
