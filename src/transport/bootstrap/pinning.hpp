#pragma once
#include <string>
#include <vector>

// Cores of their own for the ranks of a host. A rank that the system moves about now and then shares a core with another one
// while a third core has nothing to do, and the whole job waits for the two.
namespace stretto {

// Hardware threads by the system's numbers.
using HardwareThreads = std::vector<int>;

struct Core {
  int group = 0;  // what is near each other: a memory node or a socket
  HardwareThreads threads;
  bool claimed = false;  // by another job
};

// For each rank the hardware threads of its share of the unclaimed cores: as many cores for each, whole ones that follow
// each other, of one group where that works out for all. The cores are in the order of nearness. Where ranks outnumber them,
// each core gets as many ranks if all are unclaimed and that works out, else there is nothing.
std::vector<HardwareThreads> place_ranks(const std::vector<Core>& cores, int ranks);

// What one process has claimed for ranks of its host. A claim is an abstract socket bound to the core's name, so that it
// ends with the process, however that ends. Jobs in another network namespace do not see it.
class CoreClaims {
 public:
  CoreClaims() = default;
  ~CoreClaims();
  CoreClaims(const CoreClaims&) = delete;
  CoreClaims& operator=(const CoreClaims&) = delete;

  // Places that many ranks on cores that nobody has claimed, and claims these. Nothing where that cannot be, or this thread
  // may not run on every core that its machine and control group allow: somebody has pinned it on purpose.
  std::vector<HardwareThreads> place(int ranks);
  // The same over given cores. kind: of the names; claims of different kinds do not see each other.
  std::vector<HardwareThreads> place(std::vector<Core> cores, int ranks, const std::string& kind);

 private:
  std::vector<int> sockets_;
};

// Binds all threads of this process.
void run_on(const HardwareThreads& threads);

}  // namespace stretto
