#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/link.hpp"
#include "transport/network.hpp"
#include "transport/shm/board.hpp"
#include "transport/shm/kept_memory.hpp"
#include "transport/shm/peer_memory.hpp"
#include "transport/wait.hpp"

namespace stretto {

// The members of a communicator, and where they find each other.
struct Membership {
  std::uint64_t id = 0;  // below most_ids, the same on all members; communicators that share two ranks have different ones
  int rank = 0;          // this rank's number among the members
  std::vector<int> job_ranks;  // of the members
  std::vector<Area> areas;     // by member: this communicator's part of its segment
};

// The links of one communicator; each is made when it is first used.
class Links {
 public:
  // Collectives use lanes 0 to 3. Single messages, the comparison of calls and messages between GPUs without NCCL have a
  // lane each, so that they never hold up a collective.
  static constexpr int message_lane = 4;
  static constexpr int check_lane = 5;
  static constexpr int gpu_lane = 6;
  static constexpr int most_lanes = 7;
  // The most communicators of a job: their ids are a part of UCX's tags.
  static constexpr std::uint64_t most_ids = std::uint64_t{1} << 40;
  // Bytes of address space to reserve in this rank's segment for a communicator of `members` members.
  static std::size_t area_bytes(int members);

  // area_members: the number of members for which this rank's area was reserved; the area is given back with this object.
  Links(Network& network, Membership membership, int area_members);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  Link& to(int member, int lane);
  // Whether all members are on one host and reach each other through shared memory. If not, board() and memory() must not be
  // called.
  bool shares_memory() const { return shares_memory_; }
  bool one_process() const { return one_process_; }  // if so, all members reach all memory of each other
  Board& board() { return board_ ? *board_ : open_board(); }
  KeptMemory& kept_memory() { return kept_memory_; }
  PeerMemory& memory(int member) { return memories_[member] ? *memories_[member] : open_memory(member); }
  const Membership& membership() const { return membership_; }
  Network& network() { return network_; }
  const WaitPolicy& wait_policy() const { return wait_policy_; }  // for these members

 private:
  Board& open_board();
  PeerMemory& open_memory(int member);
  bool leave();

  Network& network_;
  Membership membership_;
  WaitPolicy wait_policy_;
  int area_members_;
  std::vector<std::unique_ptr<Link>> links_;
  bool shares_memory_;
  bool one_process_;
  std::unique_ptr<Board> board_;
  KeptMemory kept_memory_;
  std::vector<PeerMemory*> memories_;
};

}  // namespace stretto
