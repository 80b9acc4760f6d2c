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

// The requests of served calls that do not block. What the program holds is a request of the MPI's own: a receive from this
// very rank, with a tag of its own and no data, for which a message is sent when the operation is done. So all of MPI's
// functions take such requests, among any others. Operations go on in threads of Stretto's, which never call the MPI; the
// message is sent by a thread of the program's, in a call that waits or tests: every level of thread support will do.
class Requests {
 public:
  // Starts it and gives its request. The task has been described, but not packed.
  void start(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request);
  // Of a persistent call, which begin() starts. Collective over the ranks of the communicator, and blocks until all have
  // come.
  void prepare(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request);
  // False where it is none of ours.
  bool begin(MPI_Request* request);
  void forget(MPI_Request request);  // it is about to be freed

  bool any_started() const { return started_count_.load(std::memory_order_relaxed) > 0; }
  // How many of them belong to operations that have been started, and not been completed for the MPI.
  int ours_among(const MPI_Request* requests, int count);
  // Completes for the MPI what is done.
  void complete_done();
  // Between two looks of a thread that waits: only_ours, for nothing else.
  void pause(int looks, bool only_ours);
  // At the end of the program.
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
    std::shared_ptr<const Communicator> own;  // of a persistent call: the communicator that is its alone
    std::unique_ptr<Task> task;
    MPI_Request request = MPI_REQUEST_NULL;
    Work work;
  };
  int take_tag();
  void give_back_tag(int tag);
  void has_started(std::shared_ptr<Pending> pending);
  void tell_done();  // to a thread that sleeps in pause(): one of them is

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
