#include "transport/links.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "transport/shm/shm_link.hpp"
#ifdef STRETTO_HAVE_UCX
#include "transport/ucx/ucx_worker.hpp"
#endif

namespace stretto {

std::size_t Links::area_bytes(int members) {
  return Board::footprint() + ByteRing::largest_footprint() * static_cast<std::size_t>(members) * most_lanes;
}

Links::Links(Network& network, Membership membership, int area_members)
    : network_(network),
      membership_(std::move(membership)),
      wait_policy_(network.wait_policy()),
      area_members_(area_members),
      links_(membership_.job_ranks.size() * most_lanes),
      shares_memory_(std::all_of(membership_.job_ranks.begin(), membership_.job_ranks.end(),
                                 [&](int peer) { return network.over_shared_memory(peer); }) &&
                     !network.models_any_link(membership_.job_ranks)),
      one_process_(shares_memory_ &&
                   std::all_of(membership_.job_ranks.begin(), membership_.job_ranks.end(),
                               [&](int peer) { return network.peers_[peer].heap.pid == Heap::mine().address().pid; })),
      memories_(membership_.job_ranks.size()) {
  network.collect_retired();
  // Between hosts a wait is long, and a look is a system call: the core is better used for computation.
  if (!shares_memory_) wait_policy_ = network.wait_policy().between_hosts();
}

Links::~Links() {
  links_.clear();
  board_.reset();
  if (membership_.id == 0 || (shares_memory_ && !leave())) {
    network_.keep(kept_memory_.release());  // the area goes with the segment
  } else {
    network_.retire({membership_.areas[membership_.rank], area_bytes(area_members_),
                     shares_memory_ ? membership_.job_ranks.size() : 0, kept_memory_.release()});
  }
}

// Counts this rank as departed in every member's area. A member gives its area back when all members have departed from it,
// whether they have used it or not. Returns whether this rank's own area counts it.
bool Links::leave() {
  bool counted = false;
  for (int member = 0; member < static_cast<int>(membership_.job_ranks.size()); ++member) {
    try {
      const bool own = member == membership_.rank;
      Departures& departures =
          own ? network_.segment().departures() : network_.open_segment(membership_.job_ranks[member])->departures();
      departures.at(membership_.areas[member]).fetch_add(1, std::memory_order_acq_rel);
      counted = counted || own;
    } catch (const std::exception&) {
      // The peer has ended, or there is no memory for a page: its area then stays as long as its segment.
    }
  }
  return counted;
}

Link& Links::to(int member, int lane) {
  auto& link = links_[static_cast<std::size_t>(member) * most_lanes + lane];
  if (link) return *link;
  const int peer = membership_.job_ranks[member];
  if (network_.over_shared_memory(peer)) {
    // After the board, each area holds one ring for each pair of a sending member and a lane.
    const auto ring = [&](int owner, int sender) {
      return membership_.areas[owner].offset + Board::footprint() +
             ByteRing::largest_footprint() * (static_cast<std::size_t>(sender) * most_lanes + lane);
    };
    link = network_.modelled(std::make_unique<ShmLink>(static_cast<int>(membership_.job_ranks.size()), network_.segment(),
                                                       ring(membership_.rank, member), network_.open_segment(peer),
                                                       ring(member, membership_.rank)),
                             peer);
  } else {
#ifdef STRETTO_HAVE_UCX
    const auto tag = [&](int sender) {
      return (membership_.id << 24) | (static_cast<std::uint64_t>(lane) << 21) | static_cast<std::uint64_t>(sender);
    };
    link = std::make_unique<UcxLink>(*network_.ucx_, peer, tag(membership_.rank), tag(member));
#endif
  }
  return *link;
}

Board& Links::open_board() {
  std::vector<Board::Member> members;
  for (std::size_t member = 0; member < membership_.job_ranks.size(); ++member) {
    const bool own = static_cast<int>(member) == membership_.rank;
    members.push_back({&network_.segment(), own ? nullptr : network_.open_segment(membership_.job_ranks[member]),
                       membership_.areas[member].offset});
  }
  board_ = std::make_unique<Board>(members, membership_.rank);
  return *board_;
}

PeerMemory& Links::open_memory(int member) {
  return *(memories_[member] = &network_.open_memory(membership_.job_ranks[member]));
}

}  // namespace stretto
