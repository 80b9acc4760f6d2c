#pragma once
#include <sys/types.h>

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
#include "served_pool.hpp"
#include "stretto/communicator.hpp"

namespace stretto::mpi_door {

// The counterpart of one of the program's communicators: an intra-communicator of at least two ranks that was made while the
// door was open. It is attached to that communicator as an attribute, and ends with it.
class Served {
 public:
  Served(Communicator blocking_calls, Communicator other_calls);

  // Blocking calls run in the calling thread, on `blocking`. Non-blocking calls run on `beside`, which has a thread of its
  // own. So they are independent of blocking calls, and of when and in which order the program waits for them.
  Communicator blocking;
  Communicator beside;
  CommunicatorPool for_persistent_calls;
  int rank;
  int size;
  bool one_host;

  const Stream& stream() const;  // of `beside`; its thread starts with the first non-blocking call

 private:
  mutable std::once_flag made_;
  mutable std::optional<Stream> stream_;
};

// The state of the door in this process, from MPI_Init to MPI_Finalize.
class Door {
 public:
  void open();
  void close();
  bool is_open() const { return open_.load(std::memory_order_acquire); }

  bool is_inherited() const;  // by a child of fork()

  // Whether calls can be served at all: MPI_COMM_WORLD has at least two ranks.
  bool serves() const { return is_open() && serves_; }
  // Returns null if calls on `comm` are forwarded.
  Served* find(MPI_Comm comm);
  std::shared_ptr<Served> owner_of(Served* served);
  // Returns why calls on `comm` are forwarded, after find() has returned null.
  Outcome why_unserved(MPI_Comm comm) const;
  // Must be called after all members of `parent` have made `made` together; `made` may be MPI_COMM_NULL. Collective over the
  // members of `parent`.
  void follow(MPI_Comm parent, MPI_Comm made);

  Report report;
  Requests requests;
  MPI_Comm own_rank = MPI_COMM_NULL;  // this rank alone, for the door's own use

 private:
  // Returns the counterpart of a communicator of these ranks that was made now; null if this rank is in none.
  std::shared_ptr<Served> counterpart(const Communicator& parent, const ServedPool::Members& members, int rank);
  void attach(MPI_Comm comm, std::shared_ptr<Served> served);
  static int detach(MPI_Comm comm, int keyval, void* served, void* extra);

  std::atomic<bool> open_ = false;
  bool serves_ = false;  // written before open_
  pid_t process_ = 0;    // the process that opened the door; written before open_
  int keyval_ = MPI_KEYVAL_INVALID;
  MPI_Comm silent_ = MPI_COMM_NULL;  // has all ranks; no message is ever sent on it
  std::mutex mutex_;
  std::map<Served*, std::pair<MPI_Comm, std::shared_ptr<Served>>> served_;
  ServedPool freed_;
  // Changes with every attach and detach. A result of find() that a thread remembers is valid for one generation.
  std::atomic<std::uint64_t> generation_ = 1;
  friend void keep_mpi_going();
};

// Never destroyed: a program may end without MPI_Finalize.
Door& door();

// Lets the MPI progress its own operations.
void keep_mpi_going();

// Reports an error after which neither Stretto nor the MPI can continue, and aborts the job.
[[noreturn]] void give_up(const std::string& sentence);

// Runs `body`; an exception aborts the job.
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
