#include "transport/network.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "core/setting_values.hpp"
#include "stretto/settings.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/packing.hpp"
#include "transport/modelled_link.hpp"
#include "transport/shm/shm_link.hpp"
#ifdef STRETTO_HAVE_UCX
#include "transport/ucx/ucx_worker.hpp"
#endif

namespace stretto {

#ifndef STRETTO_HAVE_UCX
class UcxWorker {};
#endif

namespace {

// Ranks share memory if they run under one kernel, see each other's processes and belong to one user. A network namespace
// counts as a host, because a user who sets one up wants traffic to cross it.
std::uint64_t host_identity() {
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  if (!boot && lacks_descriptors(errno)) {  // else this rank would take its host for another one than its peers'
    fail(ErrorCode::unavailable, "Cannot read which host this is: {}.", errno_text(errno));
  }
  std::string text;
  std::getline(boot, text);
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net"}) {
    struct stat status {};
    if (stat(space, &status) == 0) text += fmt::format("/{}", status.st_ino);
  }
  text += fmt::format("/{}", geteuid());
  return XXH3_64bits(text.data(), text.size());
}

// The data that every rank sends to the others.
struct RankIdentity {
  std::uint64_t host = 0;
  SegmentAddress segment;
  HeapAddress heap;
  std::array<char, 8> transport{};  // STRETTO_TRANSPORT
  std::uint64_t ring_bytes = 0;     // both ends of a ring must agree on its size
  cpu_set_t may_run_on{};           // empty on a machine with more than 1024 hardware threads
  bool wants_cores = false;         // may be bound to cores
};

cpu_set_t allowed_threads() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
  return allowed;
}

// STRETTO_RANKS_PER_NODE: the node of each rank; empty if nodes are hosts.
std::vector<std::uint64_t> virtual_nodes(int ranks) {
  const std::vector<std::int64_t> sizes = numbers_setting("STRETTO_RANKS_PER_NODE");
  std::vector<std::uint64_t> nodes;
  if (sizes.size() == 1) {  // all nodes of one size; the last may have fewer ranks
    for (int rank = 0; sizes[0] > 0 && rank < ranks; ++rank) nodes.push_back(static_cast<std::uint64_t>(rank / sizes[0]));
    return nodes;
  }
  std::int64_t sum = 0;
  for (std::size_t node = 0; node < sizes.size(); ++node) {
    sum += sizes[node];
    require(sum <= ranks, "STRETTO_RANKS_PER_NODE={} has nodes for more ranks than the {} of the job; let it add up.",
            setting("STRETTO_RANKS_PER_NODE"), ranks);
    nodes.resize(static_cast<std::size_t>(sum), static_cast<std::uint64_t>(node));
  }
  require(sum == ranks, "STRETTO_RANKS_PER_NODE={} has nodes for {} ranks, but the job has {}; let it add up.",
          setting("STRETTO_RANKS_PER_NODE"), sum, ranks);
  return nodes;
}

}  // namespace

Network::Network(JobControl& job, bool may_pin)
    : job_(job),
      may_pin_(may_pin && setting("STRETTO_PIN") == "auto"),
      segment_(std::make_unique<Segment>()),
      precedence_(std::make_unique<Precedence>(segment_->bell(), Precedence::Bounds{})),
      peers_(job.size()),
      link_setting_(link_setting_from_text(setting("STRETTO_LINKS"))),
      timeout_(number_setting("STRETTO_TIMEOUT")) {
  if (may_pin_) leave_place();  // the cores that a larger job gave this rank
  const std::string wanted = setting("STRETTO_TRANSPORT");
  // A heap takes address space, of which a job may have little (ulimit -v). So none is made if no rank will open it.
  const HeapAddress heap = wanted == "ucx" ? HeapAddress{} : Heap::mine().address();
  RankIdentity mine{host_identity(), segment_->address(), heap, {}, ByteRing::largest_footprint(), allowed_threads(),
                    may_pin_};
  wanted.copy(mine.transport.data(), mine.transport.size() - 1);
  const auto* bytes = reinterpret_cast<const std::byte*>(&mine);
  const std::vector<Bytes> identities = job.exchange(Bytes(bytes, bytes + sizeof mine));
  const std::vector<std::uint64_t> nodes = virtual_nodes(job.size());
  std::vector<int> local_ranks;
  cpu_set_t host_threads = mine.may_run_on;  // of all local ranks
  bool wants_cores = false;                  // any rank of the job
  bool may_have_cores = true;                // all ranks of this host
  bool needs_ucx = false;
  for (int rank = 0; rank < job.size(); ++rank) {
    RankIdentity identity;
    ensure(identities[rank].size() == sizeof identity, "Rank {} told its address in {} bytes; the builds of Stretto differ.",
           rank, identities[rank].size());
    std::memcpy(&identity, identities[rank].data(), sizeof identity);
    require(identity.transport == mine.transport,
            "STRETTO_TRANSPORT is '{}' on rank {} and '{}' on rank {}; give all ranks the same.", wanted, job.rank(),
            identity.transport.data(), rank);
    const bool same_host = identity.host == mine.host;
    wants_cores |= identity.wants_cores;
    if (same_host) {
      local_ranks.push_back(rank);
      CPU_OR(&host_threads, &host_threads, &identity.may_run_on);
      may_have_cores &= identity.wants_cores && CPU_EQUAL(&identity.may_run_on, &mine.may_run_on) != 0;
    }
    if (wanted == "shm" && !same_host) {
      fail(ErrorCode::invalid_argument, "STRETTO_TRANSPORT=shm, but rank {} is on another host than rank {}.", rank,
           job.rank());
    }
    const std::uint64_t node = nodes.empty() ? identity.host : nodes[rank];
    peers_[rank] = {identity.segment, identity.heap, same_host && wanted != "ucx", node, false, nullptr, nullptr};
    require(!peers_[rank].shares_memory || identity.ring_bytes == mine.ring_bytes,
            "STRETTO_RING_BYTES={} on rank {} differs from rank {}'s; give all ranks of a host the same.",
            setting("STRETTO_RING_BYTES"), job.rank(), rank);
    needs_ucx |= rank != job.rank() && !peers_[rank].shares_memory;
  }
  const int local_size = static_cast<int>(local_ranks.size());
  one_host_ = local_size == job.size();
  check_link_setting();
  // A launcher may have given each rank one core: together they have one for each rank.
  const int cores = std::max(CPU_COUNT(&host_threads), usable_cores());
  ranks_per_core_ = static_cast<double>(local_size) / cores;
  wait_policy_ = WaitPolicy::chosen(local_size <= cores ? 1 : local_size);
  if (wants_cores) pin(may_have_cores ? local_ranks : std::vector<int>());

  // All ranks or none take part in the following exchange, even if a rank's peers are all local. One look at a neighbour's
  // memory answers for all ranks of a host, which have one user and one kernel.
  constexpr std::byte asks_for_ucx{1};
  constexpr std::byte cannot_read{2};
  const auto place = std::find(local_ranks.begin(), local_ranks.end(), job.rank());
  const int neighbour = place + 1 == local_ranks.end() ? local_ranks.front() : *(place + 1);
  const bool blind = over_shared_memory(neighbour) && !open_memory(neighbour).readable();
  const std::byte flag = (needs_ucx ? asks_for_ucx : std::byte{0}) | (blind ? cannot_read : std::byte{0});
  std::byte flags{0};
  for (const Bytes& part : job.exchange({flag})) flags |= part.at(0);
  reads_memory_ = (flags & cannot_read) == std::byte{0};
  if ((flags & asks_for_ucx) == std::byte{0}) return;
#ifdef STRETTO_HAVE_UCX
  open_ucx(needs_ucx);
#else
  fail(ErrorCode::unavailable,
       "Some of the {} ranks reach each other through UCX only, which this build is without; configure with "
       "STRETTO_WITH_UCX=ON.",
       job.size());
#endif
}

Network::~Network() = default;

#ifdef STRETTO_HAVE_UCX
// Collective over all ranks of the job. A cable that has just come up carries TCP before UCX uses it. So the ranks try again
// until each reaches one of another host, or the time of a meeting is over.
void Network::open_ucx(bool needed) {
  const double deadline = now_seconds() + number_setting("STRETTO_MEET_TIMEOUT");
  int other = job_.rank();
  do other = (other + 1) % job_.size();
  while (needed && over_shared_memory(other));
  while (true) {
    if (needed) ucx_ = std::make_unique<UcxWorker>(job_.rank(), job_.size(), segment_->bell(), job_.identity());
    hear_only_peers();
    std::vector<Bytes> addresses = job_.exchange(ucx_ ? ucx_->address() : Bytes());
    if (ucx_) ucx_->set_addresses(std::move(addresses));
    const std::string obstacle = ucx_ ? ucx_->obstacle_to(other) : "";
    if (!obstacle.empty() && now_seconds() > deadline) fail(ErrorCode::unavailable, "{}", obstacle);
    std::byte obstacles{0};
    for (const Bytes& part : job_.exchange({obstacle.empty() ? std::byte{0} : std::byte{1}})) obstacles |= part.at(0);
    if (obstacles == std::byte{0}) return;
    ucx_.reset();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// Collective. UCX's ports, which no other rank knows yet, get connections only from the hosts that this rank reaches by UCX.
void Network::hear_only_peers() {
  const std::vector<std::uint32_t> mine = ucx_ ? addresses_of_this_host() : std::vector<std::uint32_t>();
  const std::vector<Bytes> all = job_.exchange(bytes_of(mine));
  if (!ucx_ || number_setting("STRETTO_INSECURE") != 0) return;
  const bool by_loopback = !over_shared_memory(job_.rank());
  std::set<std::uint32_t> hosts;
  for (int rank = 0; rank < job_.size(); ++rank) {
    if (over_shared_memory(rank)) continue;
    for (const std::uint32_t address : values_of<std::uint32_t>(all[rank])) {
      const bool is_loopback = address >> 24 == 127;
      if (!is_loopback || by_loopback) hosts.insert(address);
    }
  }
  ucx_->hear_only(hosts);
}
#endif

// Collective over all ranks of the job; a rank whose host is not to be changed passes an empty list.
void Network::pin(const std::vector<int>& local_ranks) {
  std::vector<HardwareThreads> placed;
  const int ranks = static_cast<int>(local_ranks.size());
  const bool chooses = ranks > 1 && local_ranks.front() == job_.rank();
  if (chooses) placed = claims_.place(ranks);
  Bytes mine;
  for (const HardwareThreads& threads : placed) {
    const auto count = static_cast<int>(threads.size());
    const auto append = [&](const int* numbers, std::size_t how_many) {
      const auto* bytes = reinterpret_cast<const std::byte*>(numbers);
      mine.insert(mine.end(), bytes, bytes + how_many * sizeof(int));
    };
    append(&count, 1);
    append(threads.data(), threads.size());
  }
  const std::vector<Bytes> all = job_.exchange(mine);
  if (local_ranks.empty()) return;
  const Bytes& chosen = all[local_ranks.front()];
  std::vector<int> numbers(chosen.size() / sizeof(int));
  if (numbers.empty()) return;
  std::memcpy(numbers.data(), chosen.data(), numbers.size() * sizeof(int));
  std::vector<HardwareThreads> places;
  for (auto at = numbers.begin(); at != numbers.end(); at += 1 + *at) places.emplace_back(at + 1, at + 1 + *at);
  const auto mine_is = std::find(local_ranks.begin(), local_ranks.end(), job_.rank()) - local_ranks.begin();
  take_place(places, static_cast<std::size_t>(mine_is));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const int rank = local_ranks[i];
    peers_[rank].shares_core = rank != job_.rank() && places[i] == places[static_cast<std::size_t>(mine_is)];
  }
  log().info("Rank {} runs on hardware threads {}.", job_.rank(),
             fmt::join(places[static_cast<std::size_t>(mine_is)], ", "));
}

bool Network::unpin() {
  claims_.release();
  return may_pin_;
}

void Network::check_link_setting() const {
  if (link_setting_.empty()) return;
  require(one_host_,
          "STRETTO_LINKS models the links of ranks on one host, and these are on several; unset it, or start all of them on "
          "one.");
  require(setting("STRETTO_TRANSPORT") != "ucx",
          "STRETTO_LINKS models links over shared memory, and STRETTO_TRANSPORT=ucx asks for others; unset one of them.");
  const bool one_node =
      std::all_of(peers_.begin(), peers_.end(), [&](const PeerRank& peer) { return peer.node == peers_[0].node; });
  require(!link_setting_.inter || !one_node || job_.size() == 1,
          "STRETTO_LINKS='{}' models links between nodes, and all {} ranks are on one; set STRETTO_RANKS_PER_NODE.",
          setting("STRETTO_LINKS"), job_.size());
  std::set<std::uint64_t> nodes;
  for (const PeerRank& peer : peers_) nodes.insert(peer.node);
  require(link_setting_.inter || nodes.size() < peers_.size() || job_.size() == 1,
          "STRETTO_LINKS='{}' models links inside nodes, and each of the {} ranks is on a node of its own; change "
          "STRETTO_RANKS_PER_NODE.",
          setting("STRETTO_LINKS"), job_.size());
}

const LinkSpeed* Network::modelled_speed(int rank, int other) const {
  if (rank == other) return nullptr;
  const std::optional<LinkSpeed>& speed = node_of(rank) == node_of(other) ? link_setting_.intra : link_setting_.inter;
  return speed ? &*speed : nullptr;
}

// The same answer on all of these ranks, although some may have no such link themselves.
bool Network::models_any_link(const std::vector<int>& ranks) const {
  std::set<std::uint64_t> nodes;
  for (const int rank : ranks) nodes.insert(node_of(rank));
  return (link_setting_.inter && nodes.size() > 1) || (link_setting_.intra && nodes.size() < ranks.size());
}

std::unique_ptr<Link> Network::modelled(std::unique_ptr<Link> link, int peer) {
  const LinkSpeed* const speed = modelled_speed(job_.rank(), peer);
  if (speed == nullptr) return link;
  const bool same_node = node_of(peer) == node_of(job_.rank());
  const auto ports_of = [&](int rank) -> std::pair<std::shared_ptr<PeerSegment>, Ports::Pair*> {
    int owner = rank;
    if (!same_node) {
      owner = 0;
      while (node_of(owner) != node_of(rank)) ++owner;
    }
    std::shared_ptr<PeerSegment> segment = open_segment(owner);
    Ports::Pair* const ports = same_node ? &segment->ports().rank : &segment->ports().node;
    return {std::move(segment), ports};
  };
  const auto [own, own_ports] = ports_of(job_.rank());
  const auto [other, other_ports] = ports_of(peer);
  return std::make_unique<ModelledLink>(std::move(link), *speed, std::shared_ptr<Port>(own, &own_ports->out),
                                        std::shared_ptr<Port>(other, &other_ports->in));
}

std::shared_ptr<PeerSegment> Network::open_segment(int peer) {
  const std::lock_guard lock(mutex_);
  auto& open = peers_[peer].open;
  if (!open) open = std::make_shared<PeerSegment>(peers_[peer].segment, peer);
  return open;
}

PeerMemory& Network::open_memory(int peer) {
  const std::lock_guard lock(mutex_);
  auto& memory = peers_[peer].memory;
  if (!memory) memory = std::make_unique<PeerMemory>(peers_[peer].heap, peer);
  return *memory;
}

void Network::retire(Retired area) {
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back(std::move(area));
  }
  collect_retired();
}

void Network::collect_retired() {
  const std::lock_guard lock(mutex_);
  std::erase_if(retired_, [&](const Retired& one) {
    if (one.members > 0) {
      std::atomic<std::uint32_t>& departures = segment_->departures().at(one.area);
      if (departures.load(std::memory_order_acquire) < one.members) return false;
      departures.store(0, std::memory_order_relaxed);
    }
    segment_->release(one.area, one.bytes);
    return true;
  });
}

void Network::keep(std::vector<std::shared_ptr<std::byte>> memory) {
  const std::lock_guard lock(mutex_);
  std::move(memory.begin(), memory.end(), std::back_inserter(kept_));
}

}  // namespace stretto
