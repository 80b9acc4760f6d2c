#pragma once
#include <cstdint>
#include <vector>

#include "stretto/dtype.hpp"
#include "stretto/layers/attention.hpp"
#include "stretto/planning/planner.hpp"

// The cost of attention over divided sequences, before anything is allocated: bytes, floating-point operations, balance,
// memory, and the time on a cluster that need not exist. All functions are pure: no rank communicates or computes.
//
// The letters: b sequences of s tokens, a width of h, t tensor-parallel ranks, a ring of c, u Ulysses ranks, elements of e
// bytes and accumulators of f (kernels::accumulator); g is the width of keys, and of values: h, or less where queries share
// them. A rank has b s/(c u) rows; a ring rank attends, for h/(t u) of the width, with s/c queries of each sequence. All
// figures are of one layer and one microbatch.
namespace stretto {

struct STRETTO_API DividedAttention {
  std::int64_t batch = 1, sequence = 0;  // b, and s of the whole sequence
  std::int64_t hidden = 0, heads = 0;    // of the whole layer: all columns of queries
  std::int64_t kv_heads = 0;             // a divisor of `heads`; 0: as many
  DType dtype = DType::bf16;
  kernels::AttentionMask mask;
  SequenceDivision division;
  int tensor = 1;

  // Throws Error(invalid_argument), in one sentence, if heads or tokens do not divide.
  void check() const;
  std::int64_t groups() const { return kv_heads > 0 ? kv_heads : heads; }
  // The heads of keys and values of a tensor-parallel rank, which may share one head with others.
  std::int64_t groups_of_rank() const { return groups() > tensor ? groups() / tensor : 1; }
  int ranks() const { return division.ring * division.ulysses * tensor; }
};

// ---- Bytes, as the ledger counts them

struct AttentionBytes {
  std::int64_t forward = 0, backward = 0;
};
// Returns the bytes that a ring rank sends to its ring (RingAttention). In forward it starts or passes on c - 1 blocks of
// keys and values, or fewer where the mask leaves hops out (ring_reach); a block has 2 b (s/c) g/(t u) elements of e bytes.
// In backward it sends the blocks again, and sums of as many elements of f bytes.
STRETTO_API AttentionBytes ring_bytes(const DividedAttention& attention, int ring_rank);
// Returns the bytes that a rank sends by all-to-alls (UlyssesAttention), in either pass: 2 b (s/(c u))
// ((h + g)/t) (u-1)/u e.
STRETTO_API AttentionBytes ulysses_bytes(const DividedAttention& attention);

// ---- Work

// The pairs of a query and a key that a mask lets see each other, for one head of one sequence.
struct STRETTO_API AttentionWork {
  std::vector<std::int64_t> of_rank;      // by ring rank, in all hops
  std::vector<std::int64_t> most_in_hop;  // by hop, of the ring rank that has most: hop i is that with the block of rank - i
  std::int64_t most() const;              // of a rank
  std::int64_t all() const;
  // The share of the ranks' time that is work, if all ranks begin each hop together. (They nearly do: the block of the next
  // hop comes from the rank before.) It is the sum over hops of the mean work, divided by the sum over hops of the most. For
  // causal attention it is c/(2c-1) with contiguous parts (contiguous_causal_efficiency(), but for the diagonal), and nearly
  // 1 with zigzag (Zhu 2024) and striped ones (Brandon et al. 2023).
  double balance() const;
};
// Counts the pairs exactly (AttentionMask::pairs). Cost: c^2 counts, whatever the number of tokens.
STRETTO_API AttentionWork attention_work(const SequenceDivision& division, const kernels::AttentionMask& mask,
                                         std::int64_t sequence);

// Floating-point operations for each pair, and each element of the width. Forward multiplies two matrices (scores, and the
// sum of values); backward five, among them the scores again (Dao 2022).
inline constexpr double attention_forward_flops = 4, attention_backward_flops = 10;

// ---- Time

struct AttentionMachine {
  StepCluster cluster;  // its ranks are a multiple of DividedAttention::ranks(), which lie in the order of MeshShape::place
  double flops_per_second = 0;  // of one rank, in attention
};

struct AttentionPass {
  std::int64_t ring_bytes = 0, ulysses_bytes = 0;  // sent by the rank that sends most
  double flops = 0;                                // of the rank that has most
  // In seconds; only with a machine. `computing` is the sum over hops of the slowest rank's computing time; the rest is
  // communication that nothing hides.
  double seconds = 0, computing = 0;
  double exposed() const { return seconds - computing; }
};
struct AttentionCost {
  AttentionPass forward, backward;
  double balance = 1;
  // Bytes that a rank's core keeps between forward and backward: q, k, v and the result, 2 b (s/(c u)) ((h + g)/t) e, and f
  // for each token and head. With Ulysses the layer keeps the result once more, as the projection needs it.
  std::int64_t kept = 0, result_again = 0;
  // The most bytes that a rank's message buffers take at a time, which is in backward. Ring: keys and values twice
  // (RingPass), and their gradients ring_sum_buffers() times, of the rank that has most. Ulysses with k pieces: the
  // gradients of a piece's queries, keys and values twice, and its result twice, once with k = 2, not with k = 1. With
  // both: the ring's for a piece, and of these one result less, or nothing with k = 1.
  std::int64_t buffers = 0;
};

// The time is simulated hop by hop, in lock-step. A hop takes as long as the rank that computes longest, or as the messages
// that travel meanwhile: in forward the block of the next hop, in backward also the sum of the previous one. Backward begins
// and ends with one half each of the own block's work: while the last half is computed, the last sum comes home. If some
// block makes fewer hops, or a piece has one head of keys, the own block is computed at once, and nothing hides the last
// sum. A message costs alpha + overhead + bytes/bandwidth of its link (Hockney 1994; the innermost level that holds both
// ranks), and shares the ports of its node with those of the node's other rings. A hop that some block makes counts as if
// all blocks made it.
//
// Ulysses exchanges heads in `pieces`, as even as possible, but in no more pieces than a rank has heads of keys. The
// arrival of the first piece and the departure of the last are exposed. While a rank attends to a piece, the next one
// arrives and the previous one departs. An all-to-all takes the time of the cluster's fastest method (cost.hpp). If it and
// the ring use links of the same level, they share them.
//
// The time does not include copies within a rank, the products before and after attention, or tensor-parallel communication,
// which goes with those products.
STRETTO_API AttentionCost attention_cost(const DividedAttention& attention, const AttentionMachine* machine = nullptr,
                                         int pieces = UlyssesAttention::usual_pieces);

}  // namespace stretto
