#pragma once
#include "planning/step/collective_costs.hpp"
#include "stretto/layers/parameter.hpp"
#include "stretto/planning/attention_cost.hpp"

namespace stretto {

// The keys and values that a ring rank passes on, of so many columns each, and their gradients.
struct RingBlock {
  std::int64_t bytes = 0, gradient_bytes = 0;
};
RingBlock ring_block(const DividedAttention& attention, std::int64_t width);

// Predicts the time of both passes (attention_cost.hpp).
class AttentionClock {
 public:
  // reach: by block (ring_reach). pieces: of a rank's heads of keys and values. The attention, its work and the machine must
  // outlive the object.
  AttentionClock(const DividedAttention& attention, const AttentionWork& work, const std::vector<int>& reach,
                 const AttentionMachine& machine, const std::vector<Share>& pieces);
  void time_forward(AttentionPass& pass);  // both functions set the seconds
  void time_backward(AttentionPass& pass);

 private:
  struct Kind {
    double flops;   // for each pair and element of the width
    bool has_sums;  // go round the ring behind the blocks
    // Before and behind attention, Ulysses exchanges as many columns as queries have, and with `keys` as many as keys and
    // values have besides.
    bool keys_in, keys_out;
  };
  struct RingTime {
    double seconds = 0, computing = 0;
    double travelling = 0;  // the links of the ring are busy
  };
  void time(const Kind& kind, AttentionPass& pass);
  RingTime ring(const Kind& kind, std::int64_t groups) const;
  double exchange(std::int64_t groups, bool with_keys);
  // The columns of keys, and of queries, of so many heads of keys.
  std::int64_t key_width(std::int64_t groups) const { return groups * (attention_.hidden / attention_.heads); }
  std::int64_t width(std::int64_t groups) const {
    return key_width(groups) * (attention_.heads / attention_.tensor) / attention_.groups_of_rank();
  }

  const DividedAttention& attention_;
  const AttentionWork& work_;
  const AttentionMachine& machine_;
  int hops_;     // of the block that makes the most
  bool halves_;  // the own block is computed in two halves in backward
  StepGroup ring_, ulysses_;
  CollectiveCosts costs_;
  bool share_links_;  // the messages of the ring, and of Ulysses
  std::vector<Share> pieces_;
};

}  // namespace stretto
