#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/quantization.hpp"

// What one rank does in one collective, as data. An algorithm is a pure function (rank, size, shape) -> Plan; the host
// executor runs plans, the verifier proves them for any number of ranks without running them, the simulator times them, and
// the ledger counts their bytes.
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

// How it is done. Costs (p ranks, n bytes; alpha a round, beta a byte sent, gamma a byte of local work) stand over the
// generators in src/collectives/plans/.
enum class Algorithm : std::uint8_t {
  automatic,                   // the library chooses
  ring,                        // all-reduce, reduce-scatter, all-gather; in one or several lanes
  bidirectional_ring,          // the same, one half of the bytes each way round
  recursive_halving_doubling,  // the same three; halving alone for reduce-scatter, doubling alone for all-gather
  recursive_doubling,          // all-reduce of few bytes; barrier
  bruck,                       // all-gather, all-to-all of few bytes
  pairwise,                    // all-to-all, reduce-scatter: one peer after the other
  direct,                      // every byte goes straight to where it is wanted, all peers at once; send, recv
  one_shot,                    // all-reduce: everybody gets every vector and reduces by itself
  two_shot,                    // all-reduce: direct reduce-scatter, then direct all-gather
  binomial,                    // broadcast, reduce, gather, scatter: a tree of radix 2
  knomial,                     // the same, radix 4
  double_binary_tree,          // all-reduce, broadcast, reduce, in pieces
  chain,                       // broadcast, reduce, in pieces from one rank to the next
  scatter_all_gather,          // broadcast of many bytes
  reduce_scatter_gather,       // reduce of many bytes
  two_level,                   // inside nodes and between them, each by an algorithm of its own
  three_level,                 // the same with a level more: between pods of nodes
  nccl,  // on GPUs: NCCL's own collective, which is no plan of ours: it has no steps, and rounds as NCCL does
  // Over memory that all ranks of one host reach.
  packet,  // few bytes: each rank puts its vector with a number into a slot that all others read; any memory will do
  staged,  // each rank copies its vector into shared memory, where the others read what they want; any memory will do
  pull,    // each rank reads what it wants where it lies in the others' memory: mapped, or through the kernel
  push,    // each rank takes its share of the inputs where they lie, and writes it into all outputs: mapped memory only
};

// More lanes than this a plan cannot have.
constexpr int most_lanes = 4;

// An algorithm with its parameters. Text: "ring", "ring*4" (lanes), "chain/16" (pieces), "two_level(ring+two_shot)*2/8",
// "three_level(direct+ring+ring)"; of quantized collectives, whose parts are always direct, "two_level/4".
struct STRETTO_API Method {
  Algorithm algorithm = Algorithm::automatic;
  int lanes = 1;   // ring, bidirectional_ring: parts that go round independently; levels: pieces under way at a time
  int pieces = 1;  // double_binary_tree, chain, levels, all that is quantized: how many follow each other
  Algorithm inside = Algorithm::automatic;   // levels: within a node ...
  Algorithm between = Algorithm::automatic;  // ... between nodes, of a pod where there are pods ...
  Algorithm above = Algorithm::automatic;    // ... and between pods

  Method() = default;
  Method(Algorithm which) : algorithm(which) {}  // NOLINT(google-explicit-constructor): an algorithm with its defaults
  auto operator<=>(const Method&) const = default;
};

STRETTO_API const char* name(Collective collective);
STRETTO_API const char* name(Algorithm algorithm);
STRETTO_API std::string to_string(const Method& method);
STRETTO_API Collective collective_from_name(const std::string& name);  // these throw Error naming the choices
STRETTO_API Algorithm algorithm_from_name(const std::string& name);
STRETTO_API Method method_from_text(const std::string& text);
// The algorithms that can do a collective, at any number of ranks; two_level only where the ranks lie on nodes.
STRETTO_API const std::vector<Algorithm>& algorithms_for(Collective collective);
STRETTO_API bool can_do(Collective collective, Algorithm algorithm);  // whether it is among them

// The algorithms whose ranks read and write each other's memory: a communicator on one host can run them.
constexpr bool shares_memory(Algorithm algorithm) { return algorithm >= Algorithm::packet; }
// Whether it touches the buffers of other ranks, not only memory that the library has set up for it.
constexpr bool touches_buffers(Algorithm algorithm) { return algorithm >= Algorithm::pull; }
// The most bytes that a rank can put into a packet.
constexpr std::int64_t most_packet_bytes = 16384;

// Whether a request for it must say how many ranks lie on a node.
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
// Whether a count is of one rank's share (of one pair's, in all_to_all) rather than of the whole vector.
constexpr bool counts_shares(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_gather ||
         collective == Collective::all_to_all || collective == Collective::gather || collective == Collective::scatter;
}

// What may be quantized, and how it then is done.
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
  return algorithm == Algorithm::double_binary_tree || algorithm == Algorithm::chain || needs_nodes(algorithm);
}

// all_to_all: whether blocks may differ. Elsewhere every algorithm takes uneven shares.
constexpr bool takes_uneven_exchange(Algorithm algorithm) {
  return algorithm != Algorithm::bruck && !needs_nodes(algorithm) && !shares_memory(algorithm);
}

// input and output may be the same memory where the collective says so (in place); scratch belongs to the executor.
// packed holds records of quantized elements (quantization.hpp), each format in a memory of its own.
enum class Buffer : std::uint8_t { input, output, scratch, packed };

// In elements; what is packed begins at a whole group, at the record offset / group_elements(format).
struct Slice {
  Buffer buffer = Buffer::input;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  QuantizedFormat format = QuantizedFormat::none;  // of what is packed
};

enum class StepKind : std::uint8_t {
  send,         // source to the peer
  recv,         // from the peer into destination
  recv_reduce,  // destination = what the peer sends, reduced with source (which may be destination)
  copy,         // destination = source
  reduce,       // destination = the vectors that lie one after the other in source, reduced in that order, rounded once
  // Quantization. What fills up the last group of a packed vector is written, but stands for nothing.
  quantize,           // destination, packed = source
  dequantize,         // destination = source, packed
  dequantize_reduce,  // destination = the step's packed vectors, added in f32 in their order, rounded once
  requantize,         // destination, packed = the same sum
  // Between ranks that reach each other's buffers (scratch too), in plans of one lane:
  signal,       // tells everybody that what stands before it is done
  wait,         // until the peer has signalled as often as this rank has
  read,         // destination = source in the peer's memory (the peer may be this rank)
  read_reduce,  // destination = the same source in every rank's memory, reduced in rank order, rounded once; it lies in the
                // peer's memory, or in everybody's
  copy_to_all,  // destination in everybody's memory = source in the peer's memory (the peer may be this rank)
};
constexpr bool between_memories(StepKind kind) { return kind >= StepKind::signal; }
constexpr bool quantizes(StepKind kind) { return kind >= StepKind::quantize && kind <= StepKind::requantize; }

constexpr std::int32_t everybody = -2;  // as a peer

struct Step {
  StepKind kind = StepKind::copy;
  bool finishes = false;  // a reduction that adds the last missing contributions: here an average is divided
  std::int32_t peer = -1;
  Slice source;
  Slice destination;
  // quantize, requantize: which hop this is, and where what it leaves out lies in that hop's error state. No two steps share
  // a place there, and it does not depend on how many pieces there are.
  Hop hop = Hop::contribution;
  std::int64_t residual = 0;
  // dequantize_reduce, requantize: so many vectors as long as source; the first is source, each of the others begins so many
  // elements behind the one before.
  int vectors = 1;
  std::int64_t apart = 0;
};

// A plan that signals and waits does so equally often on all ranks, and reads or writes another rank's memory only between
// signals that order this with whatever else happens to that memory, its owner's beginning and ending included. (The
// scratch of a packet alone may be read after its owner has gone on: its slots are kept until nobody reads them any more.)

// Steps of a round are concurrent and touch disjoint memory (they may read the same); at most one of them sends to a given
// peer and at most one receives from it. Rounds follow each other. Lanes are independent of one another. A step of no
// elements does nothing and is left out.
struct Lane {
  std::vector<Step> steps;
  std::vector<std::size_t> round_ends;  // steps [round_ends[i-1], round_ends[i]) are round i
};

// count: elements of the whole vector (all_reduce, broadcast, reduce, send, recv), or of one rank's share (reduce_scatter,
// scatter: of the output; all_gather, gather: of the input; all_to_all: of what goes from one rank to another).
struct PlanRequest {
  Collective collective = Collective::all_reduce;
  Method method = Algorithm::ring;  // not automatic
  int rank = 0;
  int size = 1;
  std::int64_t count = 0;
  int root = 0;  // the peer of send and recv
  // Uneven shares: one count a rank, and count is 0. Shares lie one after the other in rank order. In all_to_all, counts
  // says how much goes to each rank and receive_counts how much comes from each; these differ between the ranks.
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> receive_counts = {};
  // Where the ranks lie, for algorithms of levels; ranks come node by node.
  int ranks_per_node = 0;            // rank r is on node r / ranks_per_node, and size is a multiple of it
  std::vector<int> node_sizes = {};  // where they differ: how many ranks each node has; then ranks_per_node is 0
  int nodes_per_pod = 0;             // three_level: node i is in pod i / nodes_per_pod, and there are whole pods
  // Quantized: all_gather, reduce_scatter and all_reduce by direct (two_shot) and two_level, without parts.
  QuantizedFormat quantized = QuantizedFormat::none;
  QuantizedFormat quantized_result = QuantizedFormat::none;  // all_reduce: in which the sum goes to all; never none there

  bool operator==(const PlanRequest&) const = default;
};

// Whether rank, root and counts can be meant at all, whatever the method: throws Error(invalid_argument) naming what cannot.
// A vector, and what a rank may have to hold of all the others, is at most 2^56 elements.
STRETTO_API void check_shape(const PlanRequest& request);

struct STRETTO_API Plan {
  PlanRequest request;
  std::int64_t scratch_count = 0;  // elements of scratch that the executor provides
  // The same of what is packed, by format, and of error state, by hop.
  std::array<std::int64_t, quantized_formats> packed_counts = {};
  std::array<std::int64_t, hops> residual_counts = {};
  std::vector<Lane> lanes;

  // What this rank sends, and what it reads from or writes into other ranks' memory; with what fills up groups.
  std::int64_t elements_sent() const;
  // The same in bytes, records as they are; and what of it goes to (or comes by reading from) ranks of other nodes, given
  // each rank's node.
  std::int64_t bytes_sent(std::int64_t element_bytes) const;
  std::int64_t bytes_between_nodes(std::int64_t element_bytes, const std::vector<int>& nodes) const;
  // To whom this rank sends, or into whose memory it writes; from whom it receives, or in whose memory it reads. In order,
  // without this rank.
  std::vector<int> sends_to() const;
  std::vector<int> receives_from() const;
  int rounds() const;             // of the longest lane
  std::string to_string() const;  // a line a step
};

// Elements of the input and of the output that this rank has; 0 where it has none, as off the root.
STRETTO_API std::int64_t input_count(const PlanRequest& request);
STRETTO_API std::int64_t output_count(const PlanRequest& request);

// Whether sums of 16- and 8-bit floats are rounded once although they travel as they are. Other algorithms carry partial
// sums, which then travel as f32.
STRETTO_API bool rounds_once(Algorithm algorithm);
// Whether the order of summation of an element depends on nothing but the number of ranks. Quantized sums are always formed
// in rank order, in two_level node by node.
STRETTO_API bool is_deterministic(Algorithm algorithm);

// Throws Error(invalid_argument) for an algorithm that cannot do the collective, or a rank, root or counts that do not fit.
STRETTO_API Plan make_plan(const PlanRequest& request);

// Runs all ranks' plans symbolically (plans[r] is rank r's; send and recv are no collective and are not taken) and returns
// what is wrong with them in one sentence, or nothing. It proves, for these ranks and these counts: sends and receives match
// in order and size and nobody waits forever even if no message is buffered (rendezvous); every element of every output has
// received every contribution exactly once and, in the collectives that reduce over two ranks or more, was finished exactly
// once, when nothing was missing any more; nothing unwritten is read and no input is written; steps that may run at the same
// time do not touch each other's memory, and where ranks share memory signals put in order whatever two of them do to an
// element; no slice leaves its buffer; messages of records are of one format at both ends, records begin at whole groups,
// nothing that fills up a group is taken for an element, and every quantizing step has error state of its own. In place,
// input and output share memory: in all_gather and gather (there at the root only) the input is the rank's share of the
// output, in reduce_scatter and scatter the output is the rank's share of the input, elsewhere they are the same. Throws
// Error(invalid_argument) for what is no collective or has no in-place form. Memory: 8 bytes an element of all buffers, 1
// more where any is quantized, size/8 more where the collective reduces; 12 more, and 12 for each rank that reads the
// element, where ranks share memory.
STRETTO_API std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place);
// The most often that any contribution to any output is quantized on its way. Throws what verify() says of plans that are
// wrong as Error(invalid_argument).
STRETTO_API int most_quantizations(const std::vector<Plan>& plans);
// Whether a collective has an in-place form: all but all_to_all and barrier.
STRETTO_API bool can_be_in_place(Collective collective);

}  // namespace stretto
