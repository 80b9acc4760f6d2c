#pragma once
#include <optional>
#include <string>
#include <vector>

#include "collectives/plans/levels/part_plans.hpp"
#include "stretto/planning/proof.hpp"

namespace stretto {

// Proofs of one call with different roots, and no other difference. Many algorithms only rename the ranks when the root
// moves by d: rank q + d (modulo the number of ranks) then does what rank q did. If all ranks' plans for a root are such a
// rotation of plans that were proved, they are right too, and verify() need not run again.
//
// This is sound because verify() demands nothing of a broadcast or reduce that depends on the numbers of the ranks, apart
// from the root's. Every buffer holds the whole vector or nothing, every sum takes all ranks' contributions, and memory,
// rounds and signals are those of "a rank" and "its peer". Renaming all ranks in the plans, the root included, renames them
// in the proof. That does not hold if buffers hold shares in rank order (gather and scatter), nor if sums must be formed in
// rank order: such calls are always verified. Nothing is assumed about the algorithm: the plans of every root are generated,
// and compared step by step.
class RootProofs {
 public:
  // Verifies the plans of all ranks, out of place and also in place if the collective has that form, unless they are a
  // rotation of earlier ones. Returns the fault that it found, or nothing.
  std::optional<std::string> prove(std::vector<Plan> plans);

  int verified() const { return verified_; }  // calls of prove() that were no rotation

 private:
  std::vector<std::vector<Plan>> proved_;
  int verified_ = 0;
};

// Like plans_of(), for one of many cases: parts that cases have in common are made once.
std::vector<Plan> plans_of(const ProofCase& which, plans::PartPlans& parts);

// Runs verify() on all ranks' plans in every form that the collective has. Returns the form and its fault, or nothing.
std::optional<std::string> verify_all_forms(const std::vector<Plan>& plans);

}  // namespace stretto
