#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/export.hpp"

// The collectives, the algorithms that do them, and their parameters, by name.
namespace stretto {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  reduce,
  gather,
  scatter,
  barrier,
  send,
  recv,
};

// The algorithms that do a collective. The cost of each algorithm is given at its generator in src/collectives/plans/,
// for p ranks and n bytes, in alpha per round, beta per byte sent and gamma per byte of local work. A plan may cut the
// vector into pieces, which follow each other along the same path, or into lanes, which travel independently of each
// other.
enum class Algorithm : std::uint8_t {
  automatic,                   // the library chooses
  ring,                        // all-reduce, reduce-scatter, all-gather; in one or several lanes
  bidirectional_ring,          // like ring, with half of the bytes in each direction
  recursive_halving_doubling,  // all-reduce; reduce-scatter by halving only, all-gather by doubling only
  recursive_doubling,          // all-reduce of few bytes; barrier
  bruck,                       // all-gather, all-to-all of few bytes
  pairwise,                    // all-to-all, reduce-scatter: one peer after the other
  direct,                      // every byte goes straight to its destination, all peers at once; also send, recv
  one_shot,                    // all-reduce: every rank receives all vectors and reduces them itself
  two_shot,                    // all-reduce: direct reduce-scatter, then direct all-gather
  binomial,                    // broadcast, reduce, gather, scatter: a tree of radix 2
  knomial,                     // like binomial, with radix 4
  double_binary_tree,          // all-reduce, broadcast, reduce, in pieces
  chain,                       // broadcast, reduce, in pieces from one rank to the next
  scatter_all_gather,          // broadcast of many bytes
  reduce_scatter_gather,       // reduce of many bytes
  two_level,                   // inside nodes by one algorithm, between nodes by another
  three_level,                 // like two_level, with a third algorithm between pods of nodes
  server_set,                  // all-reduce: servers, ranks that have no vector, add up shares (OperationOptions::servers)
  user,                        // a plan of the caller's own (Communicator::prepare): not to be asked for
  nccl,                        // on GPUs: NCCL's own collective. Its plan has no steps, and it rounds as NCCL does
  // Through memory that all ranks of one host can access:
  packet,  // few bytes: each rank writes its vector and a number into a slot that all others read; for any buffers
  staged,  // each rank copies its vector into shared memory, where the other ranks read it; for any buffers
  pull,    // each rank reads the other ranks' buffers, which are mapped or read through the kernel
  push,    // each rank reads its share of all inputs and writes the result into all outputs; mapped buffers only
};

// The largest number of lanes of a plan. In bidirectional_ring, a lane counts twice.
constexpr int most_lanes = 4;

// An algorithm with its parameters. "Levels" below stands for two_level and three_level. Examples of the text form are
// "ring", "ring*4" (4 lanes), "chain/16" (16 pieces), "two_level(ring+two_shot)*2/8" and
// "three_level(direct+ring+ring)". The text of a quantized two_level has no inner algorithms, because they are always
// direct: "two_level/4".
struct STRETTO_API Method {
  Algorithm algorithm = Algorithm::automatic;
  int lanes = 1;  // ring, bidirectional_ring: number of independent parts; levels: number of pieces in flight at a time
  // double_binary_tree, chain, server_set, levels, quantized methods: number of pieces that follow each other
  int pieces = 1;
  Algorithm inside = Algorithm::automatic;   // levels: within a node
  Algorithm between = Algorithm::automatic;  // levels: between nodes; with pods, between the nodes of a pod
  Algorithm above = Algorithm::automatic;    // three_level: between pods

  Method() = default;
  Method(Algorithm which) : algorithm(which) {}     // NOLINT(google-explicit-constructor): an algorithm with its defaults
  auto operator<=>(const Method&) const = default;  // NOLINT(modernize-use-nullptr): the zero is the standard's
};

STRETTO_API const char* name(Collective collective);
STRETTO_API const char* name(Algorithm algorithm);
STRETTO_API std::string to_string(const Method& method);
// These three functions throw Error naming the choices.
STRETTO_API Collective collective_from_name(const std::string& name);
STRETTO_API Algorithm algorithm_from_name(const std::string& name);
STRETTO_API Method method_from_text(const std::string& text);
// The algorithms that can do a collective for any number of ranks. two_level and three_level also need the nodes of the
// ranks.
STRETTO_API const std::vector<Algorithm>& algorithms_for(Collective collective);
STRETTO_API bool can_do(Collective collective, Algorithm algorithm);  // whether algorithms_for() contains it

// Whether ranks read and write each other's memory in this algorithm. Only a communicator on one host can run such an
// algorithm.
constexpr bool shares_memory(Algorithm algorithm) { return algorithm >= Algorithm::packet; }
// Whether ranks access each other's buffers in this algorithm, and not only memory that the library has set up.
constexpr bool touches_buffers(Algorithm algorithm) { return algorithm >= Algorithm::pull; }
// The algorithm whose plan has no steps: the links between GPUs do the whole collective.
constexpr Algorithm whole_collective = Algorithm::nccl;
constexpr bool has_steps(Algorithm algorithm) { return algorithm != whole_collective; }
// The largest number of bytes that a rank can put into a packet.
constexpr std::int64_t most_packet_bytes = 16384;

// Whether a request for the algorithm must give the nodes of the ranks.
constexpr bool needs_nodes(Algorithm algorithm) {
  return algorithm == Algorithm::two_level || algorithm == Algorithm::three_level;
}

constexpr bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}
constexpr bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce || collective == Collective::gather ||
         collective == Collective::scatter;
}
// Whether a collective is a message between two ranks. Only these two ranks call it, and `root` is the peer.
constexpr bool is_message(Collective collective) { return collective == Collective::send || collective == Collective::recv; }
// Whether `count` is the number of elements of one rank's share (in all_to_all, of one block) instead of the whole
// vector.
constexpr bool counts_shares(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather ||
         collective == Collective::all_to_all || collective == Collective::gather || collective == Collective::scatter;
}

// Whether the algorithm is meant for calls with servers (OperationOptions::servers). Without them it does what two_shot
// does, piece by piece.
constexpr bool uses_servers(Algorithm algorithm) { return algorithm == Algorithm::server_set; }

// The collectives that can be quantized, and the algorithms that can quantize them.
constexpr bool can_be_quantized(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::reduce_scatter ||
         collective == Collective::all_reduce;
}
constexpr bool quantizes(Collective collective, Algorithm algorithm) {
  if (!can_be_quantized(collective)) return false;
  return algorithm == Algorithm::two_level ||
         algorithm == (collective == Collective::all_reduce ? Algorithm::two_shot : Algorithm::direct);
}

constexpr bool takes_lanes(Algorithm algorithm) {
  return algorithm == Algorithm::ring || algorithm == Algorithm::bidirectional_ring || needs_nodes(algorithm);
}
constexpr bool takes_pieces(Algorithm algorithm, bool quantized = false) {
  if (quantized && (algorithm == Algorithm::direct || algorithm == Algorithm::two_shot)) return true;
  return algorithm == Algorithm::double_binary_tree || algorithm == Algorithm::chain || algorithm == Algorithm::server_set ||
         needs_nodes(algorithm);
}

// Whether all_to_all by this algorithm may have blocks of different sizes. In other collectives, every algorithm accepts
// uneven shares.
constexpr bool takes_uneven_exchange(Algorithm algorithm) {
  return algorithm != Algorithm::bruck && !needs_nodes(algorithm) && !shares_memory(algorithm);
}

// Whether the algorithm rounds sums of 16- and 8-bit floats only once, even though elements travel in their own type.
// The other algorithms send partial sums, which travel as f32 to be rounded only once.
STRETTO_API bool rounds_once(Algorithm algorithm);
// Whether the order of summation of an element depends only on the number of ranks. Quantized algorithms always add in
// rank order; quantized two_level adds one node after the other.
STRETTO_API bool is_deterministic(Algorithm algorithm);

// Whether a collective has an in-place form. All collectives but all_to_all, barrier, send and recv have one.
STRETTO_API bool can_be_in_place(Collective collective);

}  // namespace stretto
