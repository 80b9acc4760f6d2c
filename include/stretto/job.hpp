#pragma once
#include <memory>
#include <string>
#include <vector>

#include "stretto/export.hpp"
#include "stretto/ledger.hpp"

namespace stretto {

class Communicator;
class RankContext;

// The state that all communicators of a rank share: it belongs to the job, not to one group of ranks. A Job is a handle, and
// every communicator of a rank gives the same one (Communicator::job()). A rank leaves the job when its last communicator
// and its last Job are destroyed. Any thread may call the functions at any time, except for shrink().
class STRETTO_API Job {
 public:
  // The ledger of this rank, which has the operations of all its communicators.
  Ledger& ledger() const;
  // The flight recorder: writes the last 1,000 operations of this rank as JSON to the directory, which is made if needed,
  // and returns the file's path. `stretto-info flight DIRECTORY` compares the files of all ranks. If STRETTO_FLIGHT_DIR
  // names a directory, each rank writes its file there by itself when an operation of its own times out, and when the job
  // fails; the first such file stays. Does not communicate. The file appears when it is complete. Throws Error(io).
  std::string write_flight(const std::string& directory) const;

  // Sets the timeout, in seconds: the longest time that an operation waits for another rank while no bytes arrive. The
  // initial value is STRETTO_TIMEOUT. The timeout applies to operations that begin after this call; other ranks may set
  // other values. On GPU buffers, a communicator keeps the timeout that was in force at its first operation on GPU buffers.
  void set_timeout(double seconds) const;
  double timeout() const;
  // Limits how long this rank waits, when it leaves, until all other ranks have left, in seconds; initially the wait is
  // unlimited. At the limit, the rank tells the others that it is gone, and their operations throw Error(peer_gave_up).
  void set_leave_timeout(double seconds) const;

  // Tells all other ranks of the job that this rank gives up. Their operations then throw Error(peer_gave_up) with the
  // reason.
  void abort(const std::string& reason) const;
  // If a rank of the job is lost or has given up, throws the error that an operation would throw. Does not communicate.
  void check_ranks() const;

  // Collective over the ranks of the job that go on after a loss. Returns a communicator of them, in their order in the job,
  // numbered from 0, with the name of the job's first communicator; its timeout is this one's. `survivors`, if not null,
  // gets their ranks in this job. Call it when this rank's operations have ended, most of them by an error. Left behind are
  // ranks that have ended, those that give no sign of life for STRETTO_MEET_TIMEOUT seconds, those that don't call it within
  // the timeout, and those that a caller names in `lost` (ranks of the job), who need not be lost: their operations throw
  // Error(peer_gave_up). A stopped process that was left behind must be ended, since it could still write to its peers'
  // memory.
  //
  // The returned communicator belongs to a new job with a ledger of its own, and can shrink again. All communicators of this
  // job are unusable, and hold memory until they are destroyed.
  //
  // Throws Error(unavailable) if rank 0 is lost, through which ranks meet, or if the process uses a GPU. Throws
  // Error(peer_gave_up) on a rank that is left behind. Ranks that are lost meanwhile are left behind, too, or are an error
  // of the returned communicator. All other errors are those of starting a job; this one must then end. As MPI's
  // MPIX_Comm_shrink (Bland et al. 2013). Cost: as to start a job.
  Communicator shrink(const std::vector<int>& lost = {}, std::vector<int>* survivors = nullptr) const;

  // Internal: not part of the interface.
  explicit Job(std::shared_ptr<RankContext> context) : context_(std::move(context)) {}

 private:
  std::shared_ptr<RankContext> context_;
};

}  // namespace stretto
