#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "foreign_mpi.hpp"
#include "requests/performers.hpp"
#include "requests/task.hpp"

namespace stretto::mpi_door {

class Served;

// The requests of served calls that do not block. The program holds a request of the MPI's own: a receive from this rank
// itself, with a unique tag and no data. When the operation is done, a message with that tag is sent. So all of MPI's
// functions accept such requests, mixed with any others.
//
// Operations run in Stretto's threads, which never call the MPI. One of the program's threads sends the message, in a call
// that waits or tests, so every level of MPI's thread support is sufficient.
class Requests {
 public:
  // Starts the task and returns its request. The task must have been described, but not packed.
  void start(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request);
  // Makes the request of a persistent call, which begin() starts. Collective over the ranks of the communicator, and blocks
  // until all of them have called.
  void prepare(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request);
  // Returns false if the request is not one of the door's.
  bool begin(MPI_Request* request);
  void forget(MPI_Request request);  // must precede the release of the request

  bool any_started() const { return started_count_.load(std::memory_order_relaxed) > 0; }
  // Returns how many of the requests belong to operations that have started but are not yet completed for the MPI.
  int ours_among(const MPI_Request* requests, int count);
  // Completes for the MPI all operations that are done.
  void complete_done();
  // Called between two tests by a thread that waits. only_ours: the thread waits for the door's requests only.
  void pause(int looks, bool only_ours);
  // Blocks until all operations have ended; for MPI_Finalize.
  void finish_all();

 private:
  struct Pending {
    explicit Pending(Requests& all) : requests(all), tag(all.take_tag()) {}
    ~Pending() { requests.give_back_tag(tag); }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    Requests& requests;
    const int tag;
    std::shared_ptr<Served> on;
    std::shared_ptr<const Communicator> own;  // the communicator that a persistent call alone uses
    std::unique_ptr<Task> task;
    MPI_Request request = MPI_REQUEST_NULL;
    Work work;
  };
  int take_tag();
  void give_back_tag(int tag);
  void has_started(std::shared_ptr<Pending> pending);
  void tell_done();  // wakes the threads that sleep in pause()

  std::mutex mutex_;
  std::condition_variable one_done_;
  std::vector<std::shared_ptr<Pending>> started_;
  std::atomic<int> started_count_ = 0;
  std::map<MPI_Request, std::shared_ptr<Pending>> persistent_;
  std::atomic<int> persistent_count_ = 0;
  Performers performers_;  // of persistent calls
  std::vector<int> free_tags_;
  int next_tag_ = 0;
};

}  // namespace stretto::mpi_door
