#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "foreign_mpi.hpp"
#include "report.hpp"
#include "requests/communicator_pool.hpp"
#include "requests/requests.hpp"
#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

// What stands behind a communicator of the program's: an intra-communicator of several ranks that the door has seen being
// made. It is an attribute of that, and goes with it.
class Served {
 public:
  Served(Communicator blocking_calls, Communicator other_calls);

  // Calls that block run in the calling thread. Those that do not are on a communicator and a thread of their own, which
  // makes them independent of each other and of when and in which order the program waits.
  Communicator blocking;
  Communicator beside;
  CommunicatorPool for_persistent_calls;
  int rank;
  int size;

  const Stream& stream() const;  // of beside; the thread is there from the first such call on

 private:
  mutable std::once_flag made_;
  mutable std::optional<Stream> stream_;
};

// This process as the door sees it, from MPI_Init to MPI_Finalize.
class Door {
 public:
  void open();
  void close();
  bool is_open() const { return open_.load(std::memory_order_acquire); }

  // Whether MPI_COMM_WORLD has several ranks, at least.
  bool serves() const { return is_open() && serves_; }
  // None where calls on it are forwarded.
  Served* find(MPI_Comm comm);
  std::shared_ptr<Served> owner_of(Served* served);
  // Of a call on a communicator where find() found nothing.
  Outcome why_unserved(MPI_Comm comm) const;
  // made has been made by all members of parent together; it may be MPI_COMM_NULL. Collective over these.
  void follow(MPI_Comm parent, MPI_Comm made);

  Report report;
  Requests requests;
  MPI_Comm own_rank = MPI_COMM_NULL;  // this rank alone, for the door's own use

 private:
  void attach(MPI_Comm comm, std::shared_ptr<Served> served);
  static int detach(MPI_Comm comm, int keyval, void* served, void* extra);

  std::atomic<bool> open_ = false;
  bool serves_ = false;  // written before open_
  int keyval_ = MPI_KEYVAL_INVALID;
  MPI_Comm silent_ = MPI_COMM_NULL;  // all ranks; nobody ever sends there
  std::mutex mutex_;
  std::map<Served*, std::pair<MPI_Comm, std::shared_ptr<Served>>> served_;
  // Counts what was attached and detached: what find() remembers is of one count.
  std::atomic<std::uint64_t> generation_ = 1;
  friend void keep_mpi_going();
};

// Never destroyed: a program may end without MPI_Finalize.
Door& door();

// Lets the MPI move on what is under way there.
void keep_mpi_going();

// An error from which neither Stretto nor the MPI can go on: says it and takes the job down.
[[noreturn]] void give_up(const std::string& sentence);

// Runs what may throw an error of Stretto's.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return MPI_SUCCESS;
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

}  // namespace stretto::mpi_door
