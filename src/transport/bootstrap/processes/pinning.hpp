#pragma once
#include <string>
#include <vector>

// Binds the ranks of a host to cores of their own. A rank that the system moves about sometimes shares a core with another
// rank while a third core is idle, and the whole job waits for the two.
namespace stretto {

// Hardware threads by the system's numbers.
using HardwareThreads = std::vector<int>;

struct Core {
  int group = 0;  // of cores near each other: a memory node or a socket
  HardwareThreads threads;
  bool claimed = false;  // by another job
};

// Returns, for each rank, the hardware threads of its share of the unclaimed cores: the same number of whole, consecutive
// cores for each rank, and of one group if that is possible for all. `cores` must be in the order of nearness. If ranks
// outnumber the cores, each core gets the same number of ranks if that is possible and all cores are unclaimed; else the
// result is empty.
std::vector<HardwareThreads> place_ranks(const std::vector<Core>& cores, int ranks);

// The cores that one process has claimed for ranks of its host. A claim is an abstract socket bound to the core's name, so
// that it ends with the process, however that ends. Jobs in another network namespace do not see it.
class CoreClaims {
 public:
  CoreClaims() = default;
  ~CoreClaims();
  CoreClaims(const CoreClaims&) = delete;
  CoreClaims& operator=(const CoreClaims&) = delete;

  // Places the ranks on cores that no process has claimed, and claims these. Returns nothing if that is impossible, or if
  // this thread may not run on every core that its machine and control group allow: it has then been pinned on purpose.
  std::vector<HardwareThreads> place(int ranks);
  // The same over given cores. kind: a part of the names; claims of different kinds do not see each other.
  std::vector<HardwareThreads> place(std::vector<Core> cores, int ranks, const std::string& kind);
  // Ends the claims.
  void release();

 private:
  std::vector<int> sockets_;
};

// Binds all threads of this process to these hardware threads.
void run_on(const HardwareThreads& threads);
// Binds this process to places[rank], where `places` are those of all ranks of the host.
void take_place(const std::vector<HardwareThreads>& places, std::size_t rank);
// Lets all threads of this process run where its threads ran before the first take_place().
void leave_place();
// Whether this process runs on a core that take_place() gave to several ranks.
bool on_shared_core();
// If take_place() gave a core to several ranks, lets this process's threads run on the cores of all ranks. For ranks that
// work by turns: a rank that has work can then use the core of one that waits.
void leave_shared_core();

}  // namespace stretto
