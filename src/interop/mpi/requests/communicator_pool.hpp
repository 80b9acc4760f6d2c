#pragma once
#include <memory>
#include <vector>

#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

// Communicators for the persistent calls of one communicator of MPI.
//
// MPI matches persistent calls of different ranks by the order in which the ranks initialize them. Ranks may start them in
// any order, and a started call must complete although another one, started earlier, does not. Stretto matches operations of
// one communicator by the order of their starts and runs them one after the other. So each persistent call has a
// communicator of its own until it is freed.
class CommunicatorPool {
 public:
  // Returns a communicator of `members` that no other persistent call uses on any of these ranks. `members` must be the same
  // ones in every call. The communicator returns to the pool with the last copy of the pointer; ranks may release theirs at
  // different times.
  //
  // Collective over the members, and blocks until all of them have called (MPI calls the initialization of a persistent
  // collective nonlocal). Costs one small all-reduce, and two small all-gathers where the pool has to grow. A communicator
  // that has been used holds up to 164 KiB of shared memory in every rank, as long as the pool exists.
  std::shared_ptr<const Communicator> take(const Communicator& members);

 private:
  std::vector<std::shared_ptr<const Communicator>> all_;  // the same number on every rank, in the same order
};

}  // namespace stretto::mpi_door
