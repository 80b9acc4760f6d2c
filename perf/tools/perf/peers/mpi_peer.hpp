#pragma once
#include <memory>

#include "perf/peers/peer.hpp"
#include "stretto/launch.hpp"

namespace perf {

// Runs body on the ranks of MPI_COMM_WORLD; returns an exit status.
int run_under_mpi(const stretto::RankBody& body);
// Replaces this process by mpirun, which starts the same command line on `ranks` ranks of this host. Throws if mpirun
// cannot be started.
[[noreturn]] void restart_under_mpirun(int ranks, char** argv);
// Must be called inside run_under_mpi().
std::unique_ptr<Peer> make_mpi_peer();

}  // namespace perf
