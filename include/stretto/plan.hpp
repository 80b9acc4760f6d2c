#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/method.hpp"
#include "stretto/quantization.hpp"

// A plan is the list of steps that one rank performs in one collective, as data. An algorithm is a pure function (rank,
// size, shape) -> Plan. The host executor runs plans, verify() (planning/proof.hpp) proves them for any number of ranks
// without running them, the simulator times them, and the ledger counts their bytes.
namespace stretto {

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

  bool operator==(const Slice&) const = default;
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

  bool operator==(const Step&) const = default;
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

  bool operator==(const Lane&) const = default;
};

// The request for one rank's plan. `count` is the number of elements of the whole vector (all_reduce, broadcast, reduce,
// send, recv), of one rank's output (reduce_scatter, scatter), of one rank's input (all_gather, gather), or of one block
// (all_to_all).
struct PlanRequest {
  Collective collective = Collective::all_reduce;
  Method method = Algorithm::ring;  // not automatic
  int rank = 0;
  int size = 1;  // without servers
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
  // all_reduce that is not quantized, by messages: ranks behind the `size` first ones that have no vector. By server_set
  // they add up shares of the others' vectors; in other algorithms they do nothing. The request is otherwise that of the
  // ranks with vectors: counts and nodes are theirs.
  int servers = 0;

  bool operator==(const PlanRequest&) const = default;
};

// All ranks of the group, those without a vector, too.
inline int ranks_of(const PlanRequest& request) { return request.size + request.servers; }

// Checks rank, root and counts, for any method. Throws Error(invalid_argument) naming an invalid value. The vectors of
// all ranks together may have at most 2^56 elements.
STRETTO_API void check_shape(const PlanRequest& request);

struct STRETTO_API Plan {
  std::string name = "user";  // in the ledger, of a plan of one's own: letters, digits, -, _ and .
  PlanRequest request = {};
  std::int64_t scratch_count = 0;  // elements of scratch that the executor provides
  // Elements of packed memory, by format, and of stored errors, by hop.
  std::array<std::int64_t, quantized_formats> packed_counts = {};
  std::array<std::int64_t, hops> residual_counts = {};
  std::vector<Lane> lanes = {};

  bool operator==(const Plan&) const = default;

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

// The text form. Empty lines and what follows a # are ignored; words are separated by blanks. First come six lines, in this
// order. Then come, in any order, the fields of the request and of the plan that are not 0, none or empty. Then comes every
// lane: its rounds, one a line; commas separate the steps of a round. A step is its kind and
// - its destination, "=" and its source, as far as it has them: input, output, scratch or a quantized format, with the first
//   element and the one behind the last;
// - its peer behind "to" (send), "from" (recv), "with" (recv_reduce), "for" (wait) or "of" (read, read_reduce, copy_to_all):
//   a rank, or everybody;
// - "vectors N apart N" (dequantize_reduce, requantize), "errors HOP N" (quantize, requantize);
// - "finishes", if it adds the last missing contributions.
//
//   plan swap                # a name of letters, digits, -, _ and .
//   collective all_reduce
//   method user              # as make_plan() was asked; of a plan of one's own: user
//   rank 0
//   size 2
//   count 8
//   scratch 0                # also root, servers, counts, receive_counts, ranks_per_node, node_sizes,
//                            # nodes_per_pod, quantized, quantized_result; "packed FORMAT N", "errors HOP N"
//   lane
//   send input[0..8) to 1, recv_reduce output[0..8) = input[0..8) with 1 finishes
STRETTO_API std::string to_text(const Plan& plan);
// Throws Error(invalid_argument) with the number of the line that it cannot read. It does not check the plan.
STRETTO_API Plan plan_from_text(const std::string& text);

// Throws Error(invalid_argument) if the algorithm cannot do the collective, or if rank, root or counts do not fit.
STRETTO_API Plan make_plan(const PlanRequest& request);

}  // namespace stretto
