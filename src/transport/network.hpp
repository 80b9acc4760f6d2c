#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/gpu_exports.hpp"
#include "transport/job.hpp"
#include "transport/link.hpp"
#include "transport/link_setting.hpp"
#include "transport/pinning.hpp"
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

// Where the members of a communicator find each other.
struct Membership {
  std::uint32_t id = 0;  // the same on all members, different from every other communicator that shares two ranks with it
  int rank = 0;          // our place among the members
  std::vector<int> job_ranks;      // of the members
  std::vector<std::size_t> areas;  // of each member: where this communicator's part of its segment begins
};

// The links of one communicator, made when first used.
class Links {
 public:
  // Collectives use the lanes below; single messages, the comparison of calls and what goes between GPUs without NCCL
  // have one each, so that they never stand in a collective's way.
  static constexpr int message_lane = 4;
  static constexpr int check_lane = 5;
  static constexpr int gpu_lane = 6;
  static constexpr int most_lanes = 7;
  // Bytes of address space to reserve in the own segment for a communicator of that many members.
  static std::size_t area_bytes(int members);

  // area_members: for how many members the own area was reserved; it is given back with this object.
  Links(Network& network, Membership membership, int area_members);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  Link& to(int member, int lane);
  // Where all members are on one host and reach each other through shared memory: what they tell each other at once, and the
  // memory of each of them (of this rank, too).
  bool shares_memory() const { return shares_memory_; }
  bool one_process() const { return one_process_; }  // then any memory is reached
  Board& board() { return board_ ? *board_ : open_board(); }
  PeerMemory& memory(int member) { return memories_[member] ? *memories_[member] : open_memory(member); }
  const Membership& membership() const { return membership_; }
  Network& network() { return network_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }  // for these members

 private:
  Board& open_board();
  PeerMemory& open_memory(int member);
  std::unique_ptr<Board::Leavers> leave();

  Network& network_;
  Membership membership_;
  WaitPolicy wait_policy_;
  int area_members_;
  std::vector<std::unique_ptr<Link>> links_;
  bool shares_memory_;
  bool one_process_;
  std::unique_ptr<Board> board_;
  std::vector<PeerMemory*> memories_;
};

}  // namespace stretto
