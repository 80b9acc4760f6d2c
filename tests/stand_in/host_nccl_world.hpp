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

// What the functions that HostNccl puts into streams do there.
namespace stretto::host_nccl {

class Report {
 public:
  void note(const std::string& sentence);
  std::vector<std::string> all() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> sentences_;
};

// What one rank calls at a time for one communicator: collectives go before messages.
struct Batch {
  std::vector<GpuCollective> collectives;
  std::vector<GpuMessage> messages;
  GpuStream stream = nullptr;
  std::uint64_t number = 0;  // among this rank's calls, but for captured ones
  bool captured = false;
};

class World;

// One rank's end. Everything below is under the world's mutex.
struct Member {
  std::shared_ptr<World> world;
  int rank = 0;
  HostGpu* gpu = nullptr;
  std::uint64_t put = 0;       // into streams, not captured
  std::uint64_t finished = 0;  // of these
  GpuStream running_in = nullptr;
  std::uint64_t collectives = 0;  // begun
  std::thread::id caller;         // who calls NCCL with it just now
  int calls = 0;                  // of that one
  std::deque<Batch> unsettled;    // wait for connections
  std::uint64_t put_before = 0;   // by that thread into streams, when these were called
  bool finishing = false;
  bool aborted = false;
  bool destroyed = false;
  std::string failure;
};

// All ranks' of one communicator.
class World {
 public:
  World(int ranks, double seconds, std::shared_ptr<Report> report);

  // In a stream's thread. Throws nothing: what goes wrong is reported, and ends the world.
  void run(Member& member, const Batch& batch);

  // Under the mutex. What a rank calls asks for its connections; they are there when the others have asked as well.
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
  struct Meeting {  // of all ranks, for one collective
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
  std::set<std::pair<int, int>> asked_;  // rank and peer, or everybody
  std::shared_ptr<Report> report_;
  std::string failure_;
  std::vector<std::deque<std::shared_ptr<Post>>> boxes_;  // by sender and receiver
  std::map<std::uint64_t, Meeting> meetings_;             // by number
};

std::string text_of(const GpuCollective& call);
// How many counts input and output hold; 0 where that rank's does not matter.
std::int64_t input_counts(const GpuCollective& call, int rank, int size);
std::int64_t output_counts(const GpuCollective& call, int rank, int size);

}  // namespace stretto::host_nccl
