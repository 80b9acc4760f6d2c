#pragma once
#include "stretto/plan.hpp"

// The cases for which verify() (plan.hpp) proves plans. The tests and the tool stretto-plan use them.
namespace stretto {

// One call of a collective by all ranks of a group.
struct ProofCase {
  PlanRequest request;  // rank 0's request, without counts
  bool uneven = false;  // shares (in all_to_all, blocks) have 1, 2 and 0 times request.count elements in turn
};

// The request of rank `rank`.
STRETTO_API PlanRequest request_of(const ProofCase& which, int rank);
STRETTO_API std::vector<Plan> plans_of(const ProofCase& which);
STRETTO_API std::string to_string(const ProofCase& which);

// Returns the calls of an algorithm to prove for a group of `size` ranks: one for each way in which its plans could be
// wrong independently of the others. The cases cover:
// - every root;
// - counts smaller than the number of ranks, divisible by it, and not divisible; uneven shares, some of them empty;
// - 1 and 2 lanes, 1 and 3 pieces; in groups of up to most_ranks_with_every_parameter ranks also 4 lanes (ring only),
//   and 16 and 64 pieces;
// - for two_level and three_level, every division into nodes of equal size, and one division into nodes of unequal size.
//   Inner algorithms, lanes and pieces vary from case to case instead of being combined.
// Groups of more than most_ranks_with_every_case ranks get only one root, few elements, and nodes of up to 8 ranks, so
// that a proof for a thousand ranks takes seconds.
constexpr int most_ranks_with_every_case = 128;
constexpr int most_ranks_with_every_parameter = 16;
STRETTO_API std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size);

// Returns the cases for a quantized collective: 1 and 3 pieces, a few quantization groups in each share, and nodes of
// equal and of unequal size. `result` is the format in which the sum is sent to all ranks (all_reduce only).
STRETTO_API std::vector<ProofCase> quantized_proof_cases(Collective collective, Algorithm algorithm, int size,
                                                         QuantizedFormat format, QuantizedFormat result);

// Runs verify() on all ranks' plans, out of place and, if the collective has an in-place form, in place. Returns nullopt
// if the plans are correct, otherwise a sentence that names the case and the fault.
STRETTO_API std::optional<std::string> prove(const ProofCase& which);

// Proves many cases with `threads` threads, and returns the fault of the first case that has one. Consecutive cases of a
// broadcast or reduce may differ in the root only. If the plans for such a root equal the proved plans for an earlier
// root after the ranks are renumbered by a rotation, they are not verified again.
STRETTO_API std::optional<std::string> prove(const std::vector<ProofCase>& cases, int threads);

}  // namespace stretto
