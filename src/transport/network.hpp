#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/bootstrap/job.hpp"
#include "transport/bootstrap/pinning.hpp"
#include "transport/gpu/gpu_exports.hpp"
#include "transport/link.hpp"
#include "transport/link_setting.hpp"
#include "transport/precedence.hpp"
#include "transport/shm/board.hpp"
#include "transport/shm/peer_memory.hpp"
#include "transport/shm/segment.hpp"
#include "transport/wait.hpp"

namespace stretto {

class UcxWorker;

// What one rank owns for reaching the others; it chooses the route per peer: shared memory inside a host, UCX between hosts,
// or what STRETTO_TRANSPORT says.
class Network {
 public:
  // Collective: exchanges addresses. may_pin: this rank is a process of its own, which may be given cores of its own.
  explicit Network(Job& job, bool may_pin = false);
  ~Network();

  Job& job() { return job_; }
  Segment& segment() { return *segment_; }
  Precedence& precedence() { return *precedence_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }
  double timeout() const { return timeout_; }  // STRETTO_TIMEOUT, or what it was set to since
  void set_timeout(double seconds) { timeout_ = seconds; }
  bool over_shared_memory(int peer) const { return peers_[peer].shares_memory; }
  // Ranks of one node give the same number: a host, or with STRETTO_RANKS_PER_NODE a part of the ranks.
  std::uint64_t node_of(int rank) const { return peers_[rank].node; }
  bool one_host() const { return one_host_; }                // all ranks of the job are on this host
  double ranks_per_core() const { return ranks_per_core_; }  // of this host
  // Whether ranks of a host may read each other's memory through the kernel: all of them or none.
  bool reads_memory() const { return reads_memory_; }
  // STRETTO_LINKS, which says how fast the links between two ranks are; null: as fast as they can be.
  const LinkSetting& link_setting() const { return link_setting_; }
  const LinkSpeed* modelled_speed(int rank, int other) const;
  GpuExports& gpu_exports() { return gpu_exports_; }  // peers may have them open until the job has been left
  std::string route_name(int peer) const { return over_shared_memory(peer) ? "shm" : "ucx"; }

 private:
  friend class Links;
  std::shared_ptr<PeerSegment> open_segment(int peer);
  void pin(const std::vector<int>& local_ranks);
  PeerMemory& open_memory(int peer);
  void check_link_setting() const;
  bool models_any_link(const std::vector<int>& ranks) const;
  std::unique_ptr<Link> modelled(std::unique_ptr<Link> link, int peer);
  // What a communicator had in our segment, and who has left it; null where no member reads it.
  struct Retired {
    std::size_t area, bytes, members;
    std::unique_ptr<Board::Leavers> leavers;
  };
  // Gives that back as soon as everybody has left: at once, or when another one retires.
  void retire(Retired area);

  struct Peer {
    SegmentAddress segment;
    HeapAddress heap;
    bool shares_memory = false;
    std::uint64_t node = 0;
    std::shared_ptr<PeerSegment> open;
    std::unique_ptr<PeerMemory> memory;
  };

  Job& job_;
  std::unique_ptr<Segment> segment_;
  std::unique_ptr<Precedence> precedence_;
  std::unique_ptr<UcxWorker> ucx_;
  std::vector<Peer> peers_;
  LinkSetting link_setting_;
  std::vector<Retired> retired_;
  GpuExports gpu_exports_;
  WaitPolicy wait_policy_;
  std::atomic<double> timeout_;
  bool one_host_ = true;
  bool reads_memory_ = true;
  double ranks_per_core_ = 1;
  CoreClaims claims_;  // the first rank of a host has them for all
  std::mutex mutex_;
};

}  // namespace stretto
