#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stretto/export.hpp"

// What one rank does in one collective, as data. An algorithm is a pure function (rank, size, shape) -> Plan; the host
// executor runs plans, the verifier proves them for any number of ranks without running them, and the ledger counts their
// bytes.
namespace stretto {

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce, barrier, send, recv };

// How it is done. Costs (p ranks, n bytes, alpha a message, beta a byte, gamma a reduced byte) stand over the generators in
// src/collectives/plans/.
enum class Algorithm : std::uint8_t {
  automatic,                   // the library chooses
  ring,                        // all-reduce, reduce-scatter, all-gather
  recursive_halving_doubling,  // the same three
  recursive_doubling,          // all-reduce of few bytes; barrier
  binomial,                    // broadcast, reduce
  direct,                      // send, recv
};

STRETTO_API const char* name(Collective collective);
STRETTO_API const char* name(Algorithm algorithm);
STRETTO_API Algorithm algorithm_from_name(const std::string& name);  // throws Error naming the choices
// The algorithms that can do a collective, at any number of ranks.
STRETTO_API const std::vector<Algorithm>& algorithms_for(Collective collective);

// input and output may be the same memory where the collective says so (in place); scratch belongs to the executor.
enum class Buffer : std::uint8_t { input, output, scratch };

struct Slice {  // in elements
  Buffer buffer = Buffer::input;
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

enum class StepKind : std::uint8_t {
  send,         // source to the peer
  recv,         // from the peer into destination
  recv_reduce,  // destination = what the peer sends, reduced with source (which may be destination)
  copy,         // destination = source
};

struct Step {
  StepKind kind = StepKind::copy;
  std::int32_t peer = -1;
  Slice source;
  Slice destination;
};

// Steps of a round are concurrent and touch disjoint memory (they may read the same); at most one of them sends to a given
// peer and at most one receives from it. Rounds follow each other. Lanes are independent of one another. A step of no
// elements does nothing and is left out.
struct Lane {
  std::vector<Step> steps;
  std::vector<std::size_t> round_ends;  // steps [round_ends[i-1], round_ends[i]) are round i
};

struct STRETTO_API Plan {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::automatic;
  int rank = 0;
  int size = 1;
  int root = 0;                    // of broadcast and reduce; the peer of send and recv
  std::int64_t count = 0;          // as in PlanRequest
  std::int64_t scratch_count = 0;  // elements of scratch that the executor provides
  std::vector<Lane> lanes;

  std::int64_t elements_sent() const;
  int rounds() const;             // of the longest lane
  std::string to_string() const;  // a line a step
};

// count: elements of the whole vector (all_reduce, broadcast, reduce, send, recv), or of one rank's share
// (reduce_scatter: of the output; all_gather: of the input).
struct PlanRequest {
  Collective collective = Collective::all_reduce;
  Algorithm algorithm = Algorithm::ring;  // not automatic
  int rank = 0;
  int size = 1;
  std::int64_t count = 0;
  int root = 0;
};

// Throws Error(invalid_argument) for an algorithm that cannot do the collective, or a rank or root outside the group.
STRETTO_API Plan make_plan(const PlanRequest& request);

// Runs all ranks' plans symbolically (plans[r] is rank r's; send and recv are no collective and are not taken) and returns
// what is wrong with them in one sentence, or nothing. It proves, for these ranks and this count: sends and receives match
// in order and size and nobody waits forever even if no message is buffered (rendezvous); every element of every output has
// received every contribution exactly once; nothing unwritten is read; steps that may run at the same time do not touch each
// other's memory; no slice leaves its buffer. In place: output and input share memory.
STRETTO_API std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place);

}  // namespace stretto
