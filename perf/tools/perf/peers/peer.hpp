#pragma once
#include <memory>
#include <string>
#include <vector>

#include "perf/cases.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Another library, timed on the same buffers in the same loop.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const char* name() const = 0;
  virtual std::string version() const = 0;
  // Whether it has this collective, type and operator; if not, the table says N/A.
  virtual bool can(const Case& test_case, bool in_place) const = 0;
  // Performs the case once. Blocks until it is done on this rank; on a GPU, enqueues it in computation() and returns.
  // Collective.
  virtual void perform(const Case& test_case, bool in_place, const void* input, void* output) = 0;
};

// The names of the peers that this build has.
std::vector<std::string> peer_names();
// Throws in one sentence if the name is not among them, or if the peer cannot use buffers on that device.
void check_peer(const std::string& name, stretto::Device device);
// Collective. threads: whether the ranks are threads of one process.
std::unique_ptr<Peer> make_peer(const std::string& name, const stretto::Communicator& world, bool threads);

// Each makes the peer of one library, where this build has it. Collective. NCCL's peer needs a GPU for each rank.
std::unique_ptr<Peer> make_gloo_peer(const stretto::Communicator& world);
std::unique_ptr<Peer> make_nccl_peer(const stretto::Communicator& world);

}  // namespace perf
