#pragma once
#include "stretto/plan.hpp"

// Which cases of the repertoire are proved, for tests and for stretto-plan alike.
namespace stretto {

// One call of a collective by all ranks of a group.
struct ProofCase {
  PlanRequest request;  // rank 0's, without counts
  bool uneven = false;  // shares of 1, 2 and 0 times request.count take turns; in all_to_all for each pair of ranks
};

// The request of one of the ranks.
STRETTO_API PlanRequest request_of(const ProofCase& which, int rank);
STRETTO_API std::vector<Plan> plans_of(const ProofCase& which);
STRETTO_API std::string to_string(const ProofCase& which);

// Every way of calling an algorithm that could go wrong by itself, for a group of this size: all roots; fewer elements than
// ranks, as many as divide evenly, and others; uneven shares, some of them empty; one lane and two, one piece and three, in
// the smallest groups also four lanes, 16 pieces and 64; for levels every division into nodes of equal size, and one into
// others, with the algorithms, lanes and pieces that they take in turn. In larger groups one root, few elements, and nodes
// of up to 8, so that a proof takes seconds at a thousand ranks.
constexpr int most_ranks_with_every_case = 128;
constexpr int most_ranks_with_every_parameter = 16;
STRETTO_API std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size);

// The same of a quantized collective, whose sum goes to all in the format result (all_reduce only): one piece and three, a
// few groups in each share, and nodes that differ, too.
STRETTO_API std::vector<ProofCase> quantized_proof_cases(Collective collective, Algorithm algorithm, int size,
                                                         QuantizedFormat format, QuantizedFormat result);

// verify() of all ranks' plans, out of place and in place where that exists: what is wrong, with the case in which it is, or
// nothing.
STRETTO_API std::optional<std::string> prove(const ProofCase& which);

// The same for many cases: returns the first fault in their order. `threads` threads share the work. Where cases follow each
// other that differ in the root alone, the plans of a broadcast or reduce that are those of an earlier root with the ranks
// renamed in rotation are not verified again.
STRETTO_API std::optional<std::string> prove(const std::vector<ProofCase>& cases, int threads);

}  // namespace stretto
