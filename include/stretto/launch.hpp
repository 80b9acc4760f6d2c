#pragma once
#include <functional>
#include <string>

#include "stretto/communicator.hpp"

// How the ranks of a job come to be and find each other.
namespace stretto {

using RankBody = std::function<void(const Communicator& world)>;

// Runs body on nproc ranks that are new processes of this program (fork: call it before starting threads), and returns an
// exit status: 0 when every rank's body returned. nproc == 0: this process is one rank of a job that a launcher started, see
// connect(). A rank whose body throws says so on stderr in one sentence and takes the others with it; a rank that dies is
// named by all others. Nothing of the job is left when it returns.
STRETTO_API int launch(int nproc, const RankBody& body);

// Runs body on that many ranks that are threads of this process; throws the error of the first rank that failed on its own
// account. Eight ranks start in milliseconds: this is how tests run.
STRETTO_API void run_threads(int ranks, const RankBody& body);

// This process as a rank of a job that a launcher started. Takes rank and size from the first of these that is complete, and
// else is a job of one rank: RANK, WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK/_SIZE; PMI_RANK/_SIZE; SLURM_PROCID/_NTASKS.
// Ranks meet over TCP at MASTER_ADDR:MASTER_PORT, and show each other that they know STRETTO_JOB_SECRET. Under mpirun,
// stretto/mpi.hpp needs neither.
STRETTO_API Communicator connect();

// The same with everything given: where rank 0 is met, and a secret that all ranks share. Rank 0 may bring the socket on
// which it listens already. One process may be a rank of several jobs at the same time.
struct STRETTO_API MeetingPoint {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string secret;
  int listener = -1;   // taken over
  double timeout = 0;  // seconds in which all ranks must have come; 0: STRETTO_MEET_TIMEOUT
};
STRETTO_API MeetingPoint
open_meeting(const std::string& host);  // for rank 0: a free port, a listening socket, a random secret
// Collective. A process may have several ranks, each connected by a thread of its own, and be in several jobs.
STRETTO_API Communicator connect(int rank, int size, const MeetingPoint& point, const std::string& name = "world");

// Runs body as launch() does, on a communicator that is already there: for programs that connect by themselves.
STRETTO_API int run(const Communicator& world, const RankBody& body);

}  // namespace stretto
