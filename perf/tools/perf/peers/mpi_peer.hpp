#pragma once
#include <memory>

#include "perf/peers/peer.hpp"
#include "stretto/launch.hpp"

namespace perf {

bool started_by_mpirun();
int mpirun_ranks();
// Runs body on the ranks of MPI_COMM_WORLD and returns an exit status.
int run_under_mpi(const stretto::RankBody& body);
// Replaces this process by mpirun, which starts the same command line on that many ranks of this host. Returns only by
// throwing.
[[noreturn]] void restart_under_mpirun(int ranks, char** argv);
// Inside run_under_mpi() only.
std::unique_ptr<Peer> make_mpi_peer();

}  // namespace perf
