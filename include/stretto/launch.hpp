#pragma once
#include <functional>
#include <string>

#include "stretto/communicator.hpp"

// How the ranks of a job start and find each other.
namespace stretto {

using RankBody = std::function<void(const Communicator& world)>;

// Runs body on nproc ranks and returns an exit status: 0 if every rank's body returned. The ranks are new processes of
// this program, made by fork(); so call it before starting threads. nproc == 1 runs body in this process. nproc == 0:
// this process is one rank of a job that a launcher started, see connect(). If a rank's body throws, the rank prints one
// sentence to stderr, and all other ranks end too. If a rank dies, all others name it. No process of the job is left when
// launch() returns.
STRETTO_API int launch(int nproc, const RankBody& body);

// Runs body on `ranks` ranks, each a thread of this process. Throws the error of the first rank that failed; errors
// caused by another rank's failure count only if there is no other. Eight ranks start in milliseconds: tests run this
// way.
STRETTO_API void run_threads(int ranks, const RankBody& body);

// Joins the job that a launcher started, as one of its ranks. Rank and size come from the first of these pairs that is
// set: RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK and _SIZE; PMI_RANK and _SIZE; SLURM_PROCID and _NTASKS. If
// none is set, this process is a job of one rank. Ranks meet over TCP at MASTER_ADDR:MASTER_PORT and prove to each other
// that they know STRETTO_JOB_SECRET. Programs under mpirun can use stretto/mpi.hpp instead, which needs neither.
STRETTO_API Communicator connect();

// The meeting point of a job's ranks: rank 0's address, and a secret that all ranks share.
struct STRETTO_API MeetingPoint {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string secret;
  int listener = -1;   // rank 0 only: a socket that already listens, or -1. connect() closes it if the job has several ranks
  double timeout = 0;  // seconds within which all ranks must have come; 0: STRETTO_MEET_TIMEOUT
};
// For rank 0: opens a listening socket on a free port and makes a random secret.
STRETTO_API MeetingPoint open_meeting(const std::string& host);
// Collective over all ranks of the job. A process may have several ranks, each connected by its own thread, and may take
// part in several jobs at the same time.
STRETTO_API Communicator connect(int rank, int size, const MeetingPoint& point, const std::string& name = "world");

// Runs body with launch()'s error handling on an existing communicator, for programs that connect by themselves.
STRETTO_API int run(const Communicator& world, const RankBody& body);

}  // namespace stretto
