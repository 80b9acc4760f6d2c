#pragma once
#include "stretto/plan.hpp"

// The cases in which plans are proved, for the tests and for stretto-plan.
namespace stretto {

// One call of a collective by all ranks of a group.
struct ProofCase {
  PlanRequest request;  // rank 0's, without counts
  bool uneven = false;  // shares (in all_to_all, blocks) have 1, 2 and 0 times request.count elements in turn
};

// The request of one rank.
STRETTO_API PlanRequest request_of(const ProofCase& which, int rank);
STRETTO_API std::vector<Plan> plans_of(const ProofCase& which);
STRETTO_API std::string to_string(const ProofCase& which);

// All ways of calling an algorithm in which its plans could be wrong independently, for a group of `size` ranks:
// - all roots;
// - fewer elements than ranks, numbers that divide evenly, and others; uneven shares, some of them empty;
// - 1 and 2 lanes, 1 and 3 pieces; up to most_ranks_with_every_parameter ranks also 4 lanes, 16 and 64 pieces;
// - for two_level and three_level, every division into nodes of equal size and one into unequal nodes; inner
//   algorithms, lanes and pieces take turns.
// Above most_ranks_with_every_case ranks only one root, few elements, and nodes of up to 8 ranks, so that a proof takes
// seconds at a thousand ranks.
constexpr int most_ranks_with_every_case = 128;
constexpr int most_ranks_with_every_parameter = 16;
STRETTO_API std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size);

// The cases of a quantized collective: 1 and 3 pieces, a few groups in each share, and equal and unequal nodes.
// `result` is the format in which the sum goes to all (all_reduce only).
STRETTO_API std::vector<ProofCase> quantized_proof_cases(Collective collective, Algorithm algorithm, int size,
                                                         QuantizedFormat format, QuantizedFormat result);

// Runs verify() on all ranks' plans, out of place and, if the collective has that form, in place. Returns nothing if
// they are right, else what is wrong and in which case.
STRETTO_API std::optional<std::string> prove(const ProofCase& which);

// The same for many cases: returns the first fault in their order. `threads` threads share the work. Where cases follow each
// other that differ in the root alone, the plans of a broadcast or reduce that are those of an earlier root with the ranks
// renamed in rotation are not verified again.
STRETTO_API std::optional<std::string> prove(const std::vector<ProofCase>& cases, int threads);

}  // namespace stretto
