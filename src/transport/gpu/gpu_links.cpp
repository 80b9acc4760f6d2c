#include "transport/gpu/gpu_links.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "stretto/settings.hpp"
#include "transport/gpu/exchange_struct.hpp"
#include "transport/gpu/gpu_collectives.hpp"
#include "transport/gpu/host_staging.hpp"
#include "transport/gpu/ipc_staging.hpp"
#include "transport/gpu/peer_copies.hpp"
#include "transport/gpu/staged_links.hpp"
#include "transport/links.hpp"
#include "transport/nccl/nccl_links.hpp"

namespace stretto {
namespace {

constexpr std::int32_t least_nccl = 22800;  // an older one would end the program at the first call that it lacks

enum class GpuRoute : std::uint8_t { any, nccl, copies, ipc, staged };

// The data that every member sends to the others.
struct GpuIdentity {
  std::array<char, 48> gpu{};  // its uuid
  std::array<char, 48> gpu_name{};
  std::uint64_t process[2]{};  // identifies the process among all
  std::int32_t major = 0;
  GpuRoute wanted = GpuRoute::any;
  std::int32_t nccl_version = 0;  // 0: none
};

GpuRoute wanted_route() {
  const std::string text = setting("STRETTO_GPU_TRANSPORT");
  for (const auto& [name, route] : {std::pair{"nccl", GpuRoute::nccl},
                                    {"copies", GpuRoute::copies},
                                    {"ipc", GpuRoute::ipc},
                                    {"staged", GpuRoute::staged}}) {
    if (text == name) return route;
  }
  return GpuRoute::any;
}

GpuIdentity own_identity(const Gpu& gpu) {
  static const std::uint64_t random = [] {
    std::random_device source;
    return (static_cast<std::uint64_t>(source()) << 32) | source();
  }();
  GpuIdentity identity;
  put(identity.gpu, gpu.info().uuid);
  put(identity.gpu_name, gpu.info().name);
  identity.process[0] = random;  // a fork()ed child has the same one, but another process number
  identity.process[1] = static_cast<std::uint64_t>(getpid());
  identity.major = gpu.info().major;
  identity.wanted = wanted_route();
  identity.nccl_version = nccl() != nullptr ? nccl()->version() : 0;
  return identity;
}

bool are_one_process(const GpuIdentity& one, const GpuIdentity& other) {
  return std::equal(one.process, one.process + 2, other.process);
}

// The reason why these members cannot communicate by NCCL, or by copies; empty if they can. The same on all members.
std::string obstacle_to_nccl(const std::vector<GpuIdentity>& identities, const std::vector<int>& ranks) {
  for (std::size_t one = 0; one < identities.size(); ++one) {
    if (identities[one].nccl_version == 0) {
      return fmt::format("rank {} runs a build of Stretto without NCCL (configure it where CUDA and NCCL 2.28 are)",
                         ranks[one]);
    }
    if (identities[one].nccl_version < least_nccl) {
      return fmt::format(
          "rank {} has loaded an NCCL that calls itself {}, and 2.28 ({}) is needed (put that first in "
          "LD_LIBRARY_PATH)",
          ranks[one], identities[one].nccl_version, least_nccl);
    }
    for (std::size_t other = one + 1; other < identities.size(); ++other) {
      if (identities[one].gpu == identities[other].gpu) {
        return fmt::format("ranks {} and {} share GPU {} ({}), which NCCL refuses", ranks[one], ranks[other],
                           identities[one].gpu.data(), identities[one].gpu_name.data());
      }
    }
  }
  return "";
}

std::string obstacle_to_copies(const std::vector<GpuIdentity>& identities, const std::vector<int>& ranks) {
  for (std::size_t other = 1; other < identities.size(); ++other) {
    if (!are_one_process(identities[0], identities[other])) {
      return fmt::format("ranks {} and {} are different processes, and copies are between threads of one", ranks[0],
                         ranks[other]);
    }
  }
  return "";
}

// Blocks in the GPUs' memory unless the user wants others; in the host's if that is impossible.
std::unique_ptr<Staging> make_staging(Links& links, Gpu& gpu, const ExchangeBytes& exchange_bytes,
                                      const std::vector<GpuIdentity>& identities, GpuRoute wanted) {
  const Membership& members = links.membership();
  if (wanted != GpuRoute::staged) {
    IpcStaging::SetUp by_ipc{nullptr,
                             "not all ranks share memory (they are on several hosts, or STRETTO_TRANSPORT=ucx or "
                             "STRETTO_LINKS keeps them from it)"};
    if (links.shares_memory()) {
      std::vector<bool> is_here;
      is_here.reserve(identities.size());
      for (const GpuIdentity& identity : identities) is_here.push_back(are_one_process(identity, identities[members.rank]));
      by_ipc = IpcStaging::set_up(gpu, links, exchange_bytes, is_here,
                                  IpcStaging::blocks_for(static_cast<int>(identities.size())));
    }
    if (by_ipc.staging) return std::move(by_ipc.staging);
    require(wanted != GpuRoute::ipc, "STRETTO_GPU_TRANSPORT=ipc cannot be: {}.", by_ipc.obstacle);
    if (members.rank == 0) {
      log().info("GPUs of ranks {} reach each other by way of the host; CUDA IPC cannot be: {}.",
                 fmt::join(members.job_ranks, ", "), by_ipc.obstacle);
    }
  }
  return std::make_unique<HostStaging>(gpu, links);
}

}  // namespace

bool may_be_done_whole(const GpuCollective& call) { return NcclLinks::knows(call); }

// Threads of a process usually share a GPU, and use copies; processes usually have a GPU each.
bool expects_gpu_collectives(const Links& links) { return !links.one_process() && nccl() != nullptr; }

std::unique_ptr<GpuLinks> make_gpu_links(Links& links, Gpu& gpu, const ExchangeBytes& exchange_bytes) {
  const Membership& members = links.membership();
  const std::vector<int>& ranks = members.job_ranks;
  const std::vector<GpuIdentity> identities = exchange_struct(exchange_bytes, own_identity(gpu));
  const GpuRoute wanted = identities[0].wanted;
  for (std::size_t member = 1; member < identities.size(); ++member) {
    require(identities[member].wanted == wanted,
            "STRETTO_GPU_TRANSPORT differs between ranks {} and {}; give all ranks the same.", ranks[0], ranks[member]);
  }
  const std::string no_nccl = obstacle_to_nccl(identities, ranks);
  const std::string no_copies = obstacle_to_copies(identities, ranks);
  require(wanted != GpuRoute::nccl || no_nccl.empty(), "STRETTO_GPU_TRANSPORT=nccl cannot be: {}.", no_nccl);
  require(wanted != GpuRoute::copies || no_copies.empty(), "STRETTO_GPU_TRANSPORT=copies cannot be: {}.", no_copies);
  // A member that is alone needs no NCCL.
  const bool by_nccl = wanted == GpuRoute::nccl || (wanted == GpuRoute::any && no_nccl.empty() && ranks.size() > 1);
  Network& network = links.network();
  const auto check = [&network] { network.job().check(); };
  if (by_nccl) {
    const NcclId id = exchange_struct(exchange_bytes, members.rank == 0 ? nccl()->new_id() : NcclId{})[0];
    const auto least =
        std::min_element(identities.begin(), identities.end(),
                         [](const GpuIdentity& one, const GpuIdentity& other) { return one.major < other.major; });
    return std::make_unique<NcclLinks>(
        *nccl(), gpu, NcclMember{members.rank, static_cast<int>(ranks.size()), least->major, network.timeout()}, id, check);
  }
  if (wanted == GpuRoute::ipc || wanted == GpuRoute::staged || !no_copies.empty()) {
    return std::make_unique<StagedLinks>(gpu, links, make_staging(links, gpu, exchange_bytes, identities, wanted));
  }
  const int others = static_cast<int>(ranks.size()) - 1;
  std::shared_ptr<CopyBoard> board = members.rank == 0 ? make_copy_board(others + 1) : nullptr;
  const std::uint64_t number =
      exchange_struct(exchange_bytes, members.rank == 0 ? offer_copy_board(board, others) : std::uint64_t{0})[0];
  if (members.rank != 0) board = take_copy_board(number);
  ensure(board != nullptr, "Rank {} does not find the board for copies that rank {} has made.", ranks[members.rank],
         ranks[0]);
  return std::make_unique<PeerCopies>(gpu, std::move(board), CopyMember{members.rank, ranks, network.timeout(), check});
}

}  // namespace stretto
