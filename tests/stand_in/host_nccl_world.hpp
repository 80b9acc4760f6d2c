#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stand_in/host_gpu.hpp"
#include "transport/gpu/gpu_collectives.hpp"
#include "transport/gpu/gpu_links.hpp"

// The functions that HostNccl puts into streams.
namespace stretto::host_nccl {

class Report {
 public:
  void note(const std::string& sentence);
  std::vector<std::string> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
};

// One rank's calls on one communicator in one group; collectives run before messages.
struct Batch {
  std::vector<GpuCollective> collectives;
  std::vector<GpuMessage> messages;
  GpuStream stream = nullptr;
  std::uint64_t number = 0;  // counts this rank's batches that are not captured
  bool captured = false;
};

class World;

// One rank of a communicator. The world's mutex protects its state.
struct Member {
  std::shared_ptr<World> world;
  int rank = 0;
  HostGpu* gpu = nullptr;
  std::uint64_t put = 0;       // batches put into streams, without captured ones
  std::uint64_t finished = 0;  // those of them that have ended
  GpuStream running_in = nullptr;
  std::uint64_t collectives = 0;  // that have begun
  std::thread::id caller;         // the thread that is inside a call on this communicator
  int calls = 0;                  // the depth of its nested calls
  std::deque<Batch> unsettled;    // batches that wait for connections
  std::uint64_t put_before = 0;   // put_by_this_thread() when these were called
  bool finishing = false;
  bool aborted = false;
  bool destroyed = false;
  std::string failure;
};

// One communicator of all its ranks.
class World {
 public:
  World(int ranks, double seconds, std::shared_ptr<Report> report);

  // Runs in a stream's thread. Does not throw: an error is reported and ends the world.
  void run(Member& member, const Batch& batch);

  // Both need the mutex. A batch asks for its connections; a connection is there when both sides have asked for it.
  void ask_for_connections(int rank, const Batch& batch);
  bool connected(int rank, const Batch& batch) const;

  const int size;
  const double timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> joined;
  int joined_count = 0;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Post {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool taken = false;
  };
  struct Meeting {  // all ranks' calls of one collective
    std::vector<GpuCollective> calls;
    std::vector<bool> came;
    int left = 0;
    bool done = false;
  };

  void meet(Member& member, const GpuCollective& call, Lock& lock);
  void exchange(Member& member, const std::vector<GpuMessage>& messages, Lock& lock);
  void compute(const std::vector<GpuCollective>& calls);
  std::deque<std::shared_ptr<Post>>& box(int sender, int receiver) {
    return boxes_[static_cast<std::size_t>(sender) * size + receiver];
  }
  void fail(const std::string& sentence);
  bool ended(Member& member) const { return member.aborted || !failure_.empty(); }

  static constexpr int everybody = -1;
  std::set<std::pair<int, int>> asked_;  // rank, and peer or `everybody`
  std::shared_ptr<Report> report_;
  std::string failure_;
  std::vector<std::deque<std::shared_ptr<Post>>> boxes_;  // by sender and receiver
  std::map<std::uint64_t, Meeting> meetings_;             // by number
};

std::string text_of(const GpuCollective& call);
// The sizes of input and output in multiples of call.count; 0 where the rank's buffer does not matter.
std::int64_t input_counts(const GpuCollective& call, int rank, int size);
std::int64_t output_counts(const GpuCollective& call, int rank, int size);

}  // namespace stretto::host_nccl
