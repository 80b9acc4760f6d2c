#include "transport/bootstrap/processes/pinning.hpp"

#include <fmt/format.h>
#include <hwloc.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/fail.hpp"
#include "core/log.hpp"
#include "transport/bootstrap/processes/taken_place.hpp"

namespace stretto {
namespace {

constexpr const char* kind_of_jobs = "core";

// Returns a socket bound to a name without a file; or -1 and errno, if another process has that name or no descriptor is
// left.
int claim(const std::string& name) {
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::copy_n(name.data(), length, address.sun_path + 1);  // behind a zero: abstract
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return socket;
  close(socket);
  return -1;
}

// Jobs that start at the same time choose one after the other.
int claim_in_turn(const std::string& name) {
  for (int attempt = 0; attempt < 200; ++attempt) {
    const int socket = claim(name);
    if (socket >= 0 || lacks_descriptors(errno)) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

std::vector<HardwareThreads> without_place(int error) {
  if (lacks_descriptors(error)) log().warn("Ranks are not bound to cores of their own: {}.", errno_text(error));
  return {};
}

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)>;

Topology this_machine() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  Topology owned(topology, hwloc_topology_destroy);
  hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
  if (hwloc_topology_load(topology) != 0) owned.reset();
  return owned;
}

bool may_run_everywhere(hwloc_topology_t topology) {
  const Bitmap bound(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  return hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_THREAD) == 0 &&
         hwloc_bitmap_isequal(bound.get(), hwloc_topology_get_allowed_cpuset(topology)) != 0;
}

std::vector<Core> cores_of(hwloc_topology_t topology) {
  std::vector<Core> cores;
  const int depth = hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE);
  const auto count = hwloc_get_nbobjs_by_depth(topology, depth);
  for (unsigned i = 0; i < count; ++i) {
    const hwloc_obj_t object = hwloc_get_obj_by_depth(topology, depth, i);
    Core core;
    core.group = object->nodeset != nullptr ? hwloc_bitmap_first(object->nodeset) : 0;
    for (int thread = hwloc_bitmap_first(object->cpuset); thread >= 0; thread = hwloc_bitmap_next(object->cpuset, thread)) {
      core.threads.push_back(thread);
    }
    cores.push_back(std::move(core));
  }
  return cores;
}

}  // namespace

std::vector<HardwareThreads> place_ranks(const std::vector<Core>& cores, int ranks) {
  std::vector<const Core*> free;
  for (const Core& core : cores) {
    if (!core.claimed && !core.threads.empty()) free.push_back(&core);
  }
  const auto wanted = static_cast<std::size_t>(ranks);
  if (ranks < 1 || free.empty()) return {};
  if (free.size() < wanted) {
    // Every core gets the same number of ranks, and only if the job has the whole machine. Left to itself, the system would
    // sometimes put three ranks on one core and five on another.
    if (free.size() < cores.size() || wanted % free.size() != 0) return {};
    std::vector<HardwareThreads> placed;
    for (std::size_t rank = 0; rank < wanted; ++rank) placed.push_back(free[rank * free.size() / wanted]->threads);
    return placed;
  }
  const std::size_t share = free.size() / wanted;
  // The first core of each share. Shares within one group are preferred; if there are too few of them, the shares follow
  // each other without a gap.
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at + share <= free.size();) {
    const bool within = free[at]->group == free[at + share - 1]->group;
    if (within) begins.push_back(at);
    at += within ? share : 1;
  }
  if (begins.size() < wanted) {
    begins.clear();
    for (std::size_t rank = 0; rank < wanted; ++rank) begins.push_back(rank * share);
  }
  std::vector<HardwareThreads> placed(wanted);
  for (std::size_t rank = 0; rank < wanted; ++rank) {
    for (std::size_t i = 0; i < share; ++i) {
      const HardwareThreads& threads = free[begins[rank] + i]->threads;
      placed[rank].insert(placed[rank].end(), threads.begin(), threads.end());
    }
  }
  return placed;
}

CoreClaims::~CoreClaims() { release(); }

void CoreClaims::release() {
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
}

std::vector<HardwareThreads> CoreClaims::place(int ranks) {
  const Topology machine = this_machine();
  if (!machine || !may_run_everywhere(machine.get())) return {};
  return place(cores_of(machine.get()), ranks, kind_of_jobs);
}

std::vector<HardwareThreads> CoreClaims::place(std::vector<Core> cores, int ranks, const std::string& kind) {
  const int turn = claim_in_turn(fmt::format("stretto/{}/turn", kind));
  if (turn < 0) return without_place(errno);
  // All free cores are held until it is known which ones are wanted.
  std::vector<int> held;
  int error = 0;  // the last
  for (Core& core : cores) {
    held.push_back(core.threads.empty() ? -1 : claim(fmt::format("stretto/{}/{}", kind, core.threads.front())));
    core.claimed = held.back() < 0;
    if (core.claimed) error = errno;
  }
  std::vector<HardwareThreads> placed = place_ranks(cores, ranks);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    if (held[i] < 0) continue;
    const bool used = std::any_of(placed.begin(), placed.end(), [&](const HardwareThreads& threads) {
      return std::find(threads.begin(), threads.end(), cores[i].threads.front()) != threads.end();
    });
    if (used) {
      sockets_.push_back(held[i]);
    } else {
      close(held[i]);
    }
  }
  close(turn);
  return placed.empty() ? without_place(error) : placed;
}

void run_on(const HardwareThreads& threads) {
  if (threads.empty()) return;
  const int count = *std::max_element(threads.begin(), threads.end()) + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* all) { CPU_FREE(all); });
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set.get());
  for (const int thread : threads) CPU_SET_S(thread, bytes, set.get());
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    // A thread may end meanwhile, or a sandbox may forbid this: the system then continues to choose its core.
    if (sched_setaffinity(std::stoi(task.path().filename()), bytes, set.get()) != 0) {
      log().info("A thread cannot be bound to hardware threads {}: {}.", fmt::join(threads, ", "), errno_text(errno));
    }
  }
}

namespace {

// Binding is of all threads of a process, so that a process has one place at a time, whatever jobs it takes part in. These
// variables describe that place; leave_place() ends it, and the claims with it.
std::atomic<const HardwareThreads*> cores_of_all_ranks = nullptr;  // if ranks share cores
std::atomic<bool> keeps_shared_core = false;
HardwareThreads before_any_place;
std::optional<TakenPlace> taken;
CoreClaims claimed_again;  // by return_to(), in place of the claims of the launcher that gave the place

HardwareThreads threads_allowed() {
  HardwareThreads result;
  const Bitmap bound(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  const Topology machine = this_machine();
  if (!machine || hwloc_get_cpubind(machine.get(), bound.get(), HWLOC_CPUBIND_THREAD) != 0) return result;
  for (int thread = hwloc_bitmap_first(bound.get()); thread >= 0; thread = hwloc_bitmap_next(bound.get(), thread))
    result.push_back(thread);
  return result;
}

}  // namespace

void take_place(const std::vector<HardwareThreads>& places, std::size_t rank) {
  if (before_any_place.empty()) before_any_place = threads_allowed();
  run_on(places[rank]);
  taken = {places, rank};
  keeps_shared_core = false;
  delete cores_of_all_ranks.exchange(nullptr);
  if (std::count(places.begin(), places.end(), places[rank]) == 1) return;
  auto all = std::make_unique<HardwareThreads>();
  for (const HardwareThreads& threads : places) all->insert(all->end(), threads.begin(), threads.end());
  cores_of_all_ranks = all.release();
  keeps_shared_core = true;
}

void leave_place() {
  keeps_shared_core = false;
  run_on(before_any_place);
  delete cores_of_all_ranks.exchange(nullptr);
  taken.reset();
  claimed_again.release();
}

std::optional<TakenPlace> place_taken() {
  if (taken) taken->on_shared_core = on_shared_core();
  return taken;
}

void return_to(const std::optional<TakenPlace>& place) {
  leave_place();
  if (!place) return;
  take_place(place->places, place->rank);
  if (!place->on_shared_core) leave_shared_core();
  if (place->rank != 0) return;
  // Jobs claim a core by the name of its first hardware thread alone.
  std::set<int> all;
  for (const HardwareThreads& threads : place->places) all.insert(threads.begin(), threads.end());
  std::vector<Core> cores;
  cores.reserve(all.size());
  for (const int thread : all) cores.push_back({0, {thread}});
  claimed_again.place(std::move(cores), 1, kind_of_jobs);
}

bool on_shared_core() { return keeps_shared_core.load(std::memory_order_relaxed); }

void leave_shared_core() {
  keeps_shared_core = false;
  if (const HardwareThreads* const all = cores_of_all_ranks.load()) run_on(*all);
}

}  // namespace stretto
