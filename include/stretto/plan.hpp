#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/quantization.hpp"

// A plan is the list of steps that one rank performs in one collective, as data. An algorithm is a pure function (rank,
// size, shape) -> Plan. The host executor runs plans, the verifier proves them for any number of ranks without running
// them, the simulator times them, and the ledger counts their bytes.
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
  int lanes = 1;   // ring, bidirectional_ring: number of independent parts; levels: number of pieces in flight at a time
  int pieces = 1;  // double_binary_tree, chain, levels, quantized methods: number of pieces that follow each other
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
  return algorithm == Algorithm::double_binary_tree || algorithm == Algorithm::chain || needs_nodes(algorithm);
}

// Whether all_to_all by this algorithm may have blocks of different sizes. In other collectives, every algorithm accepts
// uneven shares.
constexpr bool takes_uneven_exchange(Algorithm algorithm) {
  return algorithm != Algorithm::bruck && !needs_nodes(algorithm) && !shares_memory(algorithm);
}

// The memory that a step uses. input and output are the caller's buffers; they may share memory if the collective has an
// in-place form. The executor owns scratch and packed. packed holds records of quantized elements (quantization.hpp), in
// a separate memory for each format.
enum class Buffer : std::uint8_t { input, output, scratch, packed };

// A contiguous range of elements. In packed memory, a slice begins at a whole group: its first record is number offset /
// group_elements(format).
struct Slice {
  Buffer buffer = Buffer::input;
  std::int64_t offset = 0;
  std::int64_t count = 0;
  QuantizedFormat format = QuantizedFormat::none;  // packed memory only
};

enum class StepKind : std::uint8_t {
  send,         // sends source to the peer
  recv,         // receives from the peer into destination
  recv_reduce,  // destination = the reduction of the peer's message and source; source may be destination
  copy,         // destination = source
  reduce,       // destination = the reduction of the consecutive vectors in source, in that order, rounded once
  // Quantization. The padding of a packed vector's last group is written but never read.
  quantize,           // destination (packed) = source
  dequantize,         // destination = source (packed)
  dequantize_reduce,  // destination = the sum of the packed vectors of the step, added in f32 in their order, rounded once
  requantize,         // destination (packed) = the same sum as in dequantize_reduce
  // Between ranks that can access each other's buffers and scratch, in plans of one lane:
  signal,       // tells all ranks that the earlier steps of this rank are done
  wait,         // waits until the peer has signalled as often as this rank
  read,         // destination = source in the peer's memory; the peer may be this rank
  read_reduce,  // destination in the peer's memory, or in every rank's memory (peer == everybody) = the reduction of source
                // of every rank, in rank order, rounded once; this rank's own part is read from its input: see own_part()
  copy_to_all,  // destination in every rank's memory = source in the peer's memory; the peer may be this rank
};
constexpr bool between_memories(StepKind kind) { return kind >= StepKind::signal; }
constexpr bool quantizes(StepKind kind) { return kind >= StepKind::quantize && kind <= StepKind::requantize; }

constexpr std::int32_t everybody = -2;  // as Step::peer: all ranks

struct Step {
  StepKind kind = StepKind::copy;
  bool finishes = false;  // this reduction adds the last missing contributions, and divides an average
  std::int32_t peer = -1;
  Slice source;
  Slice destination;
  // quantize, requantize: the hop, and the offset of the quantization error in the hop's stored errors (ErrorFeedback).
  // No two steps use the same offset. The offset does not depend on the number of pieces.
  Hop hop = Hop::contribution;
  std::int64_t residual = 0;
  // dequantize_reduce, requantize: the number of packed vectors. The first vector is source. All vectors have the same
  // length, and each begins `apart` elements after the previous one.
  int vectors = 1;
  std::int64_t apart = 0;
};

// read_reduce: what the rank adds of itself. A source in scratch is a copy of the input for other ranks.
constexpr Slice own_part(const Step& step) { return {Buffer::input, step.source.offset, step.source.count}; }

// A lane is a list of rounds. The steps of a round are concurrent. They write disjoint memory, but may read the same
// memory. At most one step of a round sends to a given peer, and at most one receives from a given peer. Rounds run in
// order. Lanes are independent of each other. Steps without elements are left out.
//
// Signals and waits: all ranks signal equally often, and wait equally often. When a rank accesses another rank's memory,
// signals order this access relative to all other accesses to that memory. They also keep it between the owner's
// beginning and end of the collective. Packet and staged are the exceptions: a rank may read a slot, or scratch, after
// its owner has finished the collective, because the library keeps it until all ranks have read it.
struct Lane {
  std::vector<Step> steps;
  std::vector<std::size_t> round_ends;  // steps [round_ends[i-1], round_ends[i]) are round i
};

// The request for one rank's plan. `count` is the number of elements of the whole vector (all_reduce, broadcast, reduce,
// send, recv), of one rank's output (reduce_scatter, scatter), of one rank's input (all_gather, gather), or of one block
// (all_to_all).
struct PlanRequest {
  Collective collective = Collective::all_reduce;
  Method method = Algorithm::ring;  // not automatic
  int rank = 0;
  int size = 1;
  std::int64_t count = 0;
  int root = 0;  // the peer of send and recv
  // Uneven shares: `counts` has one count per rank, and `count` is 0. Shares lie one after the other in rank order. In
  // all_to_all, counts[r] elements go to rank r, and receive_counts[r] elements come from rank r; both lists differ
  // between ranks.
  std::vector<std::int64_t> counts = {};
  std::vector<std::int64_t> receive_counts = {};
  // The nodes of the ranks, for two_level and three_level. Ranks are numbered node by node.
  int ranks_per_node = 0;            // rank r is on node r / ranks_per_node; size must be a multiple of ranks_per_node
  std::vector<int> node_sizes = {};  // if nodes differ in size: the number of ranks of each node; ranks_per_node is then 0
  int nodes_per_pod = 0;             // three_level: node i is in pod i / nodes_per_pod; the last pod must be full
  // The format, if the collective is quantized. all_gather and reduce_scatter are quantized by direct, all_reduce by
  // two_shot, and all three also by two_level, whose method must then have no inner algorithms.
  QuantizedFormat quantized = QuantizedFormat::none;
  QuantizedFormat quantized_result = QuantizedFormat::none;  // all_reduce: the format of the sum sent to all ranks; not none

  bool operator==(const PlanRequest&) const = default;
};

// Checks rank, root and counts, for any method. Throws Error(invalid_argument) naming an invalid value. The vectors of
// all ranks together may have at most 2^56 elements.
STRETTO_API void check_shape(const PlanRequest& request);

struct STRETTO_API Plan {
  PlanRequest request;
  std::int64_t scratch_count = 0;  // elements of scratch that the executor provides
  // Elements of packed memory, by format, and of stored errors, by hop.
  std::array<std::int64_t, quantized_formats> packed_counts = {};
  std::array<std::int64_t, hops> residual_counts = {};
  std::vector<Lane> lanes;

  // The number of elements that this rank sends, or reads from or writes to other ranks' memory. Padding of groups is
  // included.
  std::int64_t elements_sent() const;
  // bytes_sent() is elements_sent() in bytes; quantized elements count with the size of their records.
  // bytes_between_nodes() is the part of bytes_sent() between this rank's node and other nodes. nodes[r] is the node of
  // rank r.
  std::int64_t bytes_sent(std::int64_t element_bytes) const;
  std::int64_t bytes_between_nodes(std::int64_t element_bytes, const std::vector<int>& nodes) const;
  // sends_to(): the ranks to which this rank sends, or whose memory it writes. receives_from(): the ranks from which
  // this rank receives, or whose memory it reads. Both are in ascending order, without this rank.
  std::vector<int> sends_to() const;
  std::vector<int> receives_from() const;
  int rounds() const;             // number of rounds of the longest lane
  std::string to_string() const;  // one line per step
};

// The number of elements of this rank's input and output. It is 0 if the rank has no such buffer, for example the output
// of gather at a rank other than the root.
STRETTO_API std::int64_t input_count(const PlanRequest& request);
STRETTO_API std::int64_t output_count(const PlanRequest& request);

// Whether the algorithm rounds sums of 16- and 8-bit floats only once, even though elements travel in their own type.
// The other algorithms send partial sums, which travel as f32 to be rounded only once.
STRETTO_API bool rounds_once(Algorithm algorithm);
// Whether the order of summation of an element depends only on the number of ranks. Quantized algorithms always add in
// rank order; quantized two_level adds one node after the other.
STRETTO_API bool is_deterministic(Algorithm algorithm);

// Throws Error(invalid_argument) if the algorithm cannot do the collective, or if rank, root or counts do not fit.
STRETTO_API Plan make_plan(const PlanRequest& request);

// Runs all ranks' plans symbolically; plans[r] is the plan of rank r. Returns nullopt if the plans are correct,
// otherwise one sentence that names the fault. verify() proves, for this number of ranks and these counts:
// - Sends and receives match in order and size. No rank waits forever, even if no message is buffered (rendezvous).
// - Every element of every output receives every contribution exactly once. In a reduction over two or more ranks,
//   exactly one step finishes the element (Step::finishes), when no contribution is missing.
// - No step reads an element that has not been written, no step writes to an input, and no slice exceeds its buffer.
// - Steps that may run at the same time do not conflict: no step writes memory that another step accesses. If ranks
//   share memory, signals order all conflicting accesses to an element.
// - Packed messages have the same format at sender and receiver, records begin at whole groups, padding is never used as
//   an element, and every quantizing step has its own stored errors.
//
// If in_place is true, input and output share memory. In all_gather, and at the root of gather, the input is the rank's
// share of the output. In reduce_scatter, and at the root of scatter, the output is the rank's share of the input. In
// other collectives, input and output are the same memory. Throws Error(invalid_argument) for send and recv, and for
// all_to_all in place.
//
// Memory needed, per element of all buffers: 8 bytes; 1 byte more if any element is quantized; size/8 bytes more if the
// collective reduces; and, if ranks share memory, 12 bytes more, and a further 12 bytes for each rank that reads the
// element.
STRETTO_API std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place);
// The largest number of times that a contribution is quantized on its way to an output. If verify() finds a fault in the
// plans, throws its sentence as Error(invalid_argument).
STRETTO_API int most_quantizations(const std::vector<Plan>& plans);
// Whether a collective has an in-place form. All collectives but all_to_all, barrier, send and recv have one.
STRETTO_API bool can_be_in_place(Collective collective);

}  // namespace stretto
