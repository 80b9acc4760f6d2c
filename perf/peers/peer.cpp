#include "peers/peer.hpp"

#include <algorithm>

#include "fail.hpp"
#ifdef STRETTO_HAVE_GLOO
#include "peers/gloo_peer.hpp"
#endif
#ifdef STRETTO_HAVE_MPI
#include "peers/mpi_peer.hpp"
#endif

namespace perf {

std::vector<std::string> peer_names() {
  return {
#ifdef STRETTO_HAVE_MPI
      "mpi",
#endif
#ifdef STRETTO_HAVE_GLOO
      "gloo",
#endif
  };
}

void check_peer(const std::string& name) {
  const auto names = peer_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), "--vs '{}' is no peer of this build; it has {}.", name,
          names.empty() ? "none" : fmt::format("{}", fmt::join(names, " and ")));
}

std::unique_ptr<Peer> make_peer(const std::string& name, [[maybe_unused]] const stretto::Communicator& world,
                                [[maybe_unused]] bool threads) {
  check_peer(name);
#ifdef STRETTO_HAVE_MPI
  if (name == "mpi") {
    require(!threads, "--vs mpi needs processes; leave --threads out.");
    return make_mpi_peer();
  }
#endif
#ifdef STRETTO_HAVE_GLOO
  if (name == "gloo") return make_gloo_peer(world);
#endif
  return nullptr;
}

}  // namespace perf
