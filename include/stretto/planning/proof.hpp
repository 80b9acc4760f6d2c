#pragma once
#include <optional>
#include <string>
#include <vector>

#include "stretto/plan.hpp"

// The proof of plans, and the cases for which it is made. libstretto does not contain it: programs that prove plans link the
// static library stretto_proof (CMake: stretto::proof).
namespace stretto {

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
std::optional<std::string> verify(const std::vector<Plan>& plans, bool in_place);
// The largest number of times that a contribution is quantized on its way to an output. If verify() finds a fault in the
// plans, throws its sentence as Error(invalid_argument).
int most_quantizations(const std::vector<Plan>& plans);

// One call of a collective by all ranks of a group.
struct ProofCase {
  PlanRequest request;  // rank 0's request, without counts
  bool uneven = false;  // shares (in all_to_all, blocks) have 1, 2 and 0 times request.count elements in turn
};

// The request of rank `rank`.
PlanRequest request_of(const ProofCase& which, int rank);
std::vector<Plan> plans_of(const ProofCase& which);
std::string to_string(const ProofCase& which);

// Returns the calls of an algorithm to prove for a group of `size` ranks: one for each way in which its plans could be
// wrong independently of the others. The cases cover:
// - every root;
// - counts smaller than the number of ranks, divisible by it, and not divisible; uneven shares, some of them empty;
// - 1 and 2 lanes, 1 and 3 pieces; in groups of up to most_ranks_with_every_parameter ranks also 4 lanes (ring only),
//   and 16 and 64 pieces;
// - for server_set, no servers, 1, half as many as other ranks, and as many; in small groups also 2, one fewer and one more;
// - for two_level and three_level, every division into nodes of equal size, and one division into nodes of unequal size.
//   Inner algorithms, lanes and pieces vary from case to case instead of being combined.
// Groups of more than most_ranks_with_every_case ranks get only one root, few elements, and nodes of up to 8 ranks, so
// that a proof for a thousand ranks takes seconds.
constexpr int most_ranks_with_every_case = 128;
constexpr int most_ranks_with_every_parameter = 16;
std::vector<ProofCase> proof_cases(Collective collective, Algorithm algorithm, int size);

// Returns the cases for a quantized collective: 1 and 3 pieces, a few quantization groups in each share, and nodes of
// equal and of unequal size. `result` is the format in which the sum is sent to all ranks (all_reduce only).
std::vector<ProofCase> quantized_proof_cases(Collective collective, Algorithm algorithm, int size, QuantizedFormat format,
                                             QuantizedFormat result);

// Runs verify() on all ranks' plans, out of place and, if the collective has an in-place form, in place. Returns nullopt
// if the plans are correct, otherwise a sentence that names the case and the fault.
std::optional<std::string> prove(const ProofCase& which);

// Proves many cases with `threads` threads, and returns the fault of the first case that has one. Consecutive cases of a
// broadcast or reduce may differ in the root only. If the plans for such a root equal the proved plans for an earlier
// root after the ranks are renumbered by a rotation, they are not verified again.
std::optional<std::string> prove(const std::vector<ProofCase>& cases, int threads);

}  // namespace stretto
