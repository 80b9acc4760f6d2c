#pragma once
#include <functional>
#include <string>

#include "stretto/communicator.hpp"

// Starts the ranks of a job and connects them. A job is the set of all ranks that are started together.
namespace stretto {

using RankBody = std::function<void(const Communicator& world)>;

// The rank whose failure ended the job, as the launching process sees it.
struct LostRank {
  int rank = 0;
  std::string fate;  // a predicate: "was killed by SIGKILL", "failed with status 1"
};
struct LaunchOptions {
  // Called in the process that called launch() when the job has failed and none of its processes is left. If it returns
  // true, all ranks start again as a new job, and run the same body.
  std::function<bool(const LostRank& lost)> starts_again = {};
  // The loss of a rank other than rank 0 does not end the other ranks, which may call Job::shrink(). The exit
  // status is that of rank 0. If shrink() throws because rank 0 is lost, and body does not catch it, a rank 0 that is
  // stopped or hangs is killed, and the status is 1.
  bool survivors_go_on = false;
  // With survivors_go_on: processes that take the places of those that have ended. The launching process calls `wanted` many
  // times a second while fewer than nproc are left. It returns how many to start now, or -1: none any more, and the job asks
  // no more. In each, `join` returns the communicator of a job that takes it in, such as by connect() where the others call
  // grow() (grow.hpp), and body gets it. One that the system cannot start (EAGAIN) is logged, and the others go on.
  struct Replacements {
    std::function<int(int left)> wanted = {};
    std::function<Communicator()> join = {};
  };
  Replacements replacements = {};
};

// Runs body on nproc ranks and returns an exit status: 0 if every rank's body returned. Each rank is a new process of
// this program, made by fork(), so call launch() before the program starts threads. If nproc is 1, body runs in this
// process. If nproc is 0, this process is one rank of a job that a launcher started (see connect()), and the status is
// that of this rank. If a rank's body throws, the rank prints one sentence to stderr, and all other ranks end too. If a
// rank dies, the error messages of the other ranks name it. No process that launch() started is left when it returns.
// The options are for nproc of 1 or more.
STRETTO_API int launch(int nproc, const RankBody& body, const LaunchOptions& options = {});

// Runs body on `ranks` ranks, each in a thread of this process. Throws the error of the first rank that failed. An error
// that another rank's failure caused (peer_gave_up) is thrown only if there is no other error. It returns when all threads
// have; if one still runs 2 seconds after the first error, that error is printed to stderr as well, with the ranks that run.
// Eight ranks start in milliseconds, so this function suits tests.
STRETTO_API void run_threads(int ranks, const RankBody& body);

// Joins, as one rank, the job that a launcher started. Rank and size come from the first of these pairs of environment
// variables that is set: RANK and WORLD_SIZE (torchrun); OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE; PMI_RANK and
// PMI_SIZE; MV2_COMM_WORLD_RANK and MV2_COMM_WORLD_SIZE; SLURM_PROCID and SLURM_NTASKS. If none is set, this process is a
// job of one rank; RANK without WORLD_SIZE is an error. The ranks connect over TCP to MASTER_ADDR:MASTER_PORT and prove to
// each other that they know STRETTO_JOB_SECRET, which ranks on several hosts need (or STRETTO_INSECURE=1). Programs under
// mpirun can use stretto/mpi.hpp instead, which needs neither the address nor the secret.
STRETTO_API Communicator connect();

// The place where the ranks of a job connect: rank 0's address, and a secret that all ranks share.
struct STRETTO_API MeetingPoint {
  std::string host = "127.0.0.1";
  int port = 0;
  std::string secret = {};
  int listener = -1;   // rank 0 only: a listening socket, or -1. connect() closes it if the job has several ranks
  double timeout = 0;  // seconds within which all ranks must connect; 0: STRETTO_MEET_TIMEOUT
  // Whether the ranks may measure a machine that they do not know (STRETTO_CALIBRATE). They must be a whole job that begins,
  // since other ranks of the job would disturb the measurement. Jobs of launch() and of connect() without arguments do so.
  bool may_calibrate = false;
  // Whether Stretto may bind this process to cores of its own, as launch() does: for processes that are one rank each. Ranks
  // of a host are bound if all of them may be. grow() divides the cores of all its ranks anew.
  bool may_pin = false;
};
// For rank 0: opens a listening socket on a free port, and makes a random secret. The caller sends host, port and secret
// to the other ranks, whose `listener` is -1.
STRETTO_API MeetingPoint open_meeting(const std::string& host);
// Connects this rank to its job. Collective over all ranks of the job. A process may have several ranks, each connected
// by its own thread, and may take part in several jobs at the same time.
STRETTO_API Communicator connect(int rank, int size, const MeetingPoint& point, const std::string& name = "world");

// From now on, when this process gets `signal`, all ranks in it write their last operations as Job::write_flight()
// does, to the directory that STRETTO_FLIGHT_DIR names. Replaces the signal's handler: use a signal that the program does
// not use itself. Only the first call in a process has an effect. If a rank is a process of its own, call it in the rank's
// body. Stretto installs no other signal handler.
STRETTO_API void write_flights_on(int signal);

// The number of ranks that mpirun, or another launcher of MPI, has started, as its variables say; 0 if none has started this
// process.
STRETTO_API int mpirun_ranks();
// For stretto/mpi.hpp, where MPI_COMM_WORLD has one rank; mpi_version: MPI_Get_library_version(). Throws
// Error(invalid_argument) if a launcher's variables say that it started several ranks: this MPI does not know that launcher.
STRETTO_API void require_alone(const std::string& mpi_version);

// Runs body on an existing communicator, with launch()'s error handling and exit status. It is for programs that call
// connect() themselves.
STRETTO_API int run(const Communicator& world, const RankBody& body);

}  // namespace stretto
