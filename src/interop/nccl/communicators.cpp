#include "interop/nccl/communicators.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <shared_mutex>
#include <thread>
#include <unordered_map>

#include "interop/nccl/calls/answers.hpp"

namespace stretto::nccl_door {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, CommPointer> known;
};
Table& table() {
  static auto& all = *new Table;
  return all;
}

struct Streams {
  std::mutex mutex;
  std::unordered_map<cudaStream_t, strettoStream_t> known;
};
Streams& streams() {
  static auto& all = *new Streams;
  return all;
}

// The background threads in which communicators and streams are destroyed.
struct Ends {
  std::mutex mutex;
  std::condition_variable changed;
  int under_way = 0;

  void begin(std::function<void()> end);
  static void wait_a_while();
};
Ends& ends() {
  static auto& all = *new Ends;
  static const bool registered = std::atexit(Ends::wait_a_while) == 0;
  (void)registered;
  return all;
}

constexpr std::chrono::seconds longest_wait_at_exit{5};

void Ends::begin(std::function<void()> end) {
  {
    const std::lock_guard lock(mutex);
    ++under_way;
  }
  std::thread([this, end = std::move(end)] {
    end();
    const std::lock_guard lock(mutex);
    --under_way;
    changed.notify_all();
  }).detach();
}

void Ends::wait_a_while() {
  std::unique_lock lock(ends().mutex);
  ends().changed.wait_for(lock, longest_wait_at_exit, [] { return ends().under_way == 0; });
}

}  // namespace

Comm::~Comm() {
  if (place != nullptr) cuda().destroy(place);
}

ncclComm_t add_shared(const CommPointer& comm) {
  const auto handle = reinterpret_cast<ncclComm_t>(comm.get());
  add_served(handle, comm);
  return handle;
}

void add_served(ncclComm_t handle, const CommPointer& comm) {
  const std::lock_guard lock(table().mutex);
  table().known[handle] = comm;
}

CommPointer find(ncclComm_t handle) {
  const std::shared_lock lock(table().mutex);
  const auto found = table().known.find(handle);
  return found == table().known.end() ? nullptr : found->second;
}

void forget(ncclComm_t handle) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().known.find(handle);
  if (found == table().known.end()) return;
  found->second->open = false;
  if (!found->second->shared) table().known.erase(found);
}

void require_open(const Comm& comm, const char* function) {
  if (comm.open) return;
  throw Refusal(ncclInvalidArgument, fmt::format("{} got a communicator of rank {} of {} that was destroyed or aborted.",
                                                 function, comm.rank, comm.size));
}

void end_in_background(strettoComm_t ranks) {
  ends().begin([ranks] { strettoCommDestroy(ranks); });
}

void wait_for_ends() {
  std::unique_lock lock(ends().mutex);
  ends().changed.wait(lock, [] { return ends().under_way == 0; });
}

strettoStream_t stream_of(cudaStream_t stream) {
  const std::lock_guard lock(streams().mutex);
  const auto found = streams().known.find(stream);
  if (found != streams().known.end()) return found->second;
  strettoStream_t made = nullptr;
  check(strettoStreamFromCuda(&made, stream));
  return streams().known[stream] = made;
}

void forget(cudaStream_t stream) {
  const std::lock_guard lock(streams().mutex);
  const auto found = streams().known.find(stream);
  if (found == streams().known.end()) return;
  ends().begin([wrapped = found->second] { strettoStreamDestroy(wrapped); });
  streams().known.erase(found);
}

void forget_streams() {
  const std::lock_guard lock(streams().mutex);
  for (const auto& [stream, wrapped] : streams().known) strettoStreamDestroy(wrapped);
  streams().known.clear();
}

}  // namespace stretto::nccl_door
