#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/awaited_ranks.hpp"
#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/processes/pinning.hpp"
#include "transport/gpu/gpu_exports.hpp"
#include "transport/link.hpp"
#include "transport/link_setting.hpp"
#include "transport/precedence.hpp"
#include "transport/shm/peer_memory.hpp"
#include "transport/shm/segment.hpp"
#include "transport/wait.hpp"

namespace stretto {

class UcxWorker;

// The resources by which one rank reaches the others. Chooses a route for each peer: shared memory inside a host, UCX
// between hosts. STRETTO_TRANSPORT overrides this choice.
class Network {
 public:
  // Collective: exchanges addresses. may_pin: whether this rank is a process of its own, which may be bound to cores.
  explicit Network(JobControl& job, bool may_pin = false);
  ~Network();

  JobControl& job() { return job_; }
  Segment& segment() { return *segment_; }
  Precedence& precedence() { return *precedence_; }
  AwaitedRanks& awaited_ranks() { return awaited_ranks_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }
  double timeout() const { return timeout_; }  // seconds: STRETTO_TIMEOUT, or the last set_timeout()
  void set_timeout(double seconds) { timeout_ = seconds; }
  bool over_shared_memory(int peer) const { return peers_[peer].shares_memory; }
  // Equal for ranks of one node: of one host, or as STRETTO_RANKS_PER_NODE divides the ranks.
  std::uint64_t node_of(int rank) const { return peers_[rank].node; }
  // Whether the peer is bound to the same core as this rank (on_shared_core()).
  bool shares_core(int peer) const { return peers_[peer].shares_core; }
  bool one_host() const { return one_host_; }                // all ranks of the job are on this host
  double ranks_per_core() const { return ranks_per_core_; }  // of this host
  // Whether the ranks of a host may read each other's memory through the kernel; the same on all ranks of the job.
  bool reads_memory() const { return reads_memory_; }
  const LinkSetting& link_setting() const { return link_setting_; }  // STRETTO_LINKS
  // The speed that STRETTO_LINKS gives the link between two ranks; null: not slowed down.
  const LinkSpeed* modelled_speed(int rank, int other) const;
  GpuExports& gpu_exports() { return gpu_exports_; }  // peers may have them open until all ranks have left the job
  // Ends the claims to cores, so that a smaller job can divide them anew. Returns whether that may bind this rank to cores.
  bool unpin();
  // Gives back the memory of communicators that all their members have left by now. Making and leaving a communicator does
  // so, too.
  void collect_retired();
  std::string route_name(int peer) const { return over_shared_memory(peer) ? "shm" : "ucx"; }

 private:
  friend class Links;
  std::shared_ptr<PeerSegment> open_segment(int peer);
  void open_ucx(bool needed);
  void hear_only_peers();
  void pin(const std::vector<int>& local_ranks);
  PeerMemory& open_memory(int peer);
  void check_link_setting() const;
  bool models_any_link(const std::vector<int>& ranks) const;
  std::unique_ptr<Link> modelled(std::unique_ptr<Link> link, int peer);
  // A communicator's area in this rank's segment, to be given back when `members` members have left it; 0: at once.
  struct Retired {
    Area area;
    std::size_t bytes, members;
    std::vector<std::shared_ptr<std::byte>> memory;  // that members may still read
  };
  void retire(Retired area);
  // Gives the memory back with this object, when all ranks have left the job.
  void keep(std::vector<std::shared_ptr<std::byte>> memory);

  struct PeerRank {
    SegmentAddress segment;
    HeapAddress heap;
    bool shares_memory = false;
    std::uint64_t node = 0;
    bool shares_core = false;
    std::shared_ptr<PeerSegment> open;
    std::unique_ptr<PeerMemory> memory;
  };

  JobControl& job_;
  const bool may_pin_;  // this rank
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Precedence> precedence_;
  std::unique_ptr<UcxWorker> ucx_;
  std::vector<PeerRank> peers_;
  LinkSetting link_setting_;
  std::vector<Retired> retired_;
  std::vector<std::shared_ptr<std::byte>> kept_;
  AwaitedRanks awaited_ranks_;
  GpuExports gpu_exports_;
  WaitPolicy wait_policy_;
  std::atomic<double> timeout_;
  bool one_host_ = true;
  bool reads_memory_ = true;
  double ranks_per_core_ = 1;
  CoreClaims claims_;  // held by the first rank of a host, for all its ranks
  std::mutex mutex_;
};

}  // namespace stretto
