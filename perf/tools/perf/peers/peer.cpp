#include "perf/peers/peer.hpp"

#include <algorithm>

#include "common/fail.hpp"
#ifdef STRETTO_HAVE_MPI
#include "perf/peers/mpi_peer.hpp"
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
#ifdef STRETTO_HAVE_NCCL
      "nccl",
#endif
  };
}

void check_peer(const std::string& name, stretto::Device device) {
  const auto names = peer_names();
  require(std::find(names.begin(), names.end(), name) != names.end(), "--vs '{}' is no peer of this build; it has {}.", name,
          names.empty() ? "none" : fmt::format("{}", fmt::join(names, " and ")));
  const bool on_gpu = device == stretto::Device::cuda;
  require(name != "nccl" || on_gpu, "--vs nccl reads and writes a GPU's memory; give --device cuda.");
  require(name == "nccl" || !on_gpu,
          "--vs {} reads and writes the host's memory, and with --device cuda buffers lie in the GPU's; give --vs nccl.",
          name);
}

std::unique_ptr<Peer> make_peer(const std::string& name, [[maybe_unused]] const stretto::Communicator& world,
                                [[maybe_unused]] bool threads) {
#ifdef STRETTO_HAVE_MPI
  if (name == "mpi") {
    require(!threads, "--vs mpi needs processes; leave --threads out.");
    return make_mpi_peer();
  }
#endif
#ifdef STRETTO_HAVE_GLOO
  if (name == "gloo") return make_gloo_peer(world);
#endif
#ifdef STRETTO_HAVE_NCCL
  if (name == "nccl") return make_nccl_peer(world);
#endif
  return nullptr;
}

}  // namespace perf
