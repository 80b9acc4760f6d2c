#pragma once
#include <memory>
#include <string>
#include <vector>

#include "perf/cases.hpp"
#include "stretto/communicator.hpp"

namespace perf {

// Another library that is timed on the same buffers, in the same loop.
class Peer {
 public:
  virtual ~Peer() = default;
  virtual const char* name() const = 0;
  virtual std::string version() const = 0;
  // Whether it has this collective, type and operator; where not, the table says N/A.
  virtual bool can(const Case& what, bool in_place) const = 0;
  // Performs it once and returns when it is done here, or on a GPU in computation() at once. All ranks call it.
  virtual void perform(const Case& what, bool in_place, const void* input, void* output) = 0;
};

// The names that this build knows.
std::vector<std::string> peer_names();
// Throws, in one sentence, for a name that is not among them, and for one that knows no buffers there.
void check_peer(const std::string& name, stretto::Device device);
// All ranks call it. threads: whether the ranks are threads of one process.
std::unique_ptr<Peer> make_peer(const std::string& name, const stretto::Communicator& world, bool threads);

}  // namespace perf
