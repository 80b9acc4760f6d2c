#pragma once
#include <optional>
#include <string>
#include <vector>

#include "collectives/plans/levels/part_plans.hpp"
#include "stretto/proof.hpp"

namespace stretto {

// Proofs of one call with one root after another, which differ in nothing else. Many algorithms only rename the ranks when
// the root moves by d: rank q + d (modulo the number of ranks) then does what rank q did. If all ranks' plans for a root are
// such a rotation of plans that have been proved, they are right, too, and verify() need not run again.
//
// This is sound because nothing that verify() demands of a broadcast or reduce depends on the numbers of the ranks, apart
// from the root's: every buffer holds the whole vector or nothing, every sum takes all ranks' contributions, and memory,
// rounds and signals are those of "a rank" and "its peer". Renaming all ranks in the plans, the root included, renames them
// in the proof. That does not hold where buffers hold shares in the order of ranks (gather and scatter), nor for sums that
// must be formed in the order of ranks: those are always verified. Nothing is assumed of the algorithm: the plans of every
// root are generated, and compared step by step.
class RootProofs {
 public:
  // Verifies the plans of all ranks, out of place and in place where the collective has that form, unless they are a
  // rotation of earlier ones. Returns what is wrong, or nothing.
  std::optional<std::string> prove(std::vector<Plan> plans);

  int verified() const { return verified_; }  // calls of prove() that were no rotation

 private:
  std::vector<std::vector<Plan>> proved_;
  int verified_ = 0;
};

// plans_of() for one of many cases, whose parts are made once.
std::vector<Plan> plans_of(const ProofCase& which, plans::PartPlans& parts);

// verify() of all ranks' plans in every form that the collective has: the form and what is wrong with it, or nothing.
std::optional<std::string> verify_all_forms(const std::vector<Plan>& plans);

}  // namespace stretto
