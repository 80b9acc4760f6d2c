#include "requests/requests.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "door.hpp"

namespace stretto::mpi_door {

constexpr int looks_before_sleep = 10;
// Bounds of the time for which a waiting thread sleeps before it lets the MPI progress again: another rank may first need a
// message or a forwarded call.
constexpr std::chrono::microseconds shortest_sleep{30};
constexpr std::chrono::microseconds longest_sleep{500};

int Requests::take_tag() {
  const std::lock_guard lock(mutex_);
  if (free_tags_.empty()) return next_tag_++;
  const int tag = free_tags_.back();
  free_tags_.pop_back();
  return tag;
}

void Requests::give_back_tag(int tag) {
  const std::lock_guard lock(mutex_);
  free_tags_.push_back(tag);
}

void Requests::start(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request) {
  auto pending = std::make_shared<Pending>(*this);
  pending->on = std::move(on);
  pending->task = std::move(task);
  PMPI_Irecv(nullptr, 0, MPI_BYTE, 0, pending->tag, door().own_rank, request);
  pending->request = *request;
  pending->task->pack();
  const Stream& stream = pending->on->stream();
  pending->work = pending->task->start(pending->on->beside, stream);
  stream.enqueue([this] { tell_done(); });
  has_started(std::move(pending));
}

void Requests::prepare(std::shared_ptr<Served> on, std::unique_ptr<Task> task, MPI_Request* request) {
  auto pending = std::make_shared<Pending>(*this);
  pending->own = on->for_persistent_calls.take(on->blocking);
  pending->on = std::move(on);
  pending->task = std::move(task);
  PMPI_Recv_init(nullptr, 0, MPI_BYTE, 0, pending->tag, door().own_rank, request);
  pending->request = *request;
  const std::lock_guard lock(mutex_);
  persistent_.emplace(*request, std::move(pending));
  ++persistent_count_;
}

bool Requests::begin(MPI_Request* request) {
  if (persistent_count_ == 0) return false;
  std::shared_ptr<Pending> pending;
  {
    const std::lock_guard lock(mutex_);
    const auto found = persistent_.find(*request);
    if (found == persistent_.end()) return false;
    pending = found->second;
  }
  PMPI_Start(request);
  pending->task->pack();
  pending->work = Work::reserve();
  // The work may be done before its thread releases this closure. So the closure holds nothing whose destructor would call
  // the MPI.
  performers_.add([this, task = pending->task.get(), own = pending->own.get(), work = pending->work] {
    try {
      Stream::inline_().enqueue([&] { task->start(*own, Stream::inline_()).wait(); }, work);
    } catch (const std::exception&) {  // wait() on the work throws it
    }
    tell_done();
  });
  has_started(std::move(pending));
  return true;
}

void Requests::forget(MPI_Request request) {
  if (persistent_count_ == 0) return;
  std::shared_ptr<Pending> last;  // destroyed after the mutex is released
  const std::lock_guard lock(mutex_);
  const auto found = persistent_.find(request);
  if (found == persistent_.end()) return;
  last = std::move(found->second);
  persistent_.erase(found);
  --persistent_count_;
}

void Requests::has_started(std::shared_ptr<Pending> pending) {
  const std::lock_guard lock(mutex_);
  started_.push_back(std::move(pending));
  ++started_count_;
}

void Requests::tell_done() {
  const std::lock_guard lock(mutex_);  // no thread is between its check and its sleep
  one_done_.notify_all();
}

int Requests::ours_among(const MPI_Request* requests, int count) {
  if (started_count_ == 0) return 0;
  const std::lock_guard lock(mutex_);
  int ours = 0;
  for (int i = 0; i < count; ++i) {
    ours += std::any_of(started_.begin(), started_.end(), [&](const auto& one) { return one->request == requests[i]; });
  }
  return ours;
}

void Requests::complete_done() {
  if (started_count_ == 0) return;
  std::vector<std::shared_ptr<Pending>> done;
  {
    const std::lock_guard lock(mutex_);
    const auto rest =
        std::stable_partition(started_.begin(), started_.end(), [](const auto& one) { return !one->work.done(); });
    done.assign(rest, started_.end());
    started_.erase(rest, started_.end());
    started_count_ -= static_cast<int>(done.size());
  }
  for (const auto& one : done) {
    one->work.wait();  // throws the operation's error
    one->task->unpack();
    PMPI_Send(nullptr, 0, MPI_BYTE, 0, one->tag, door().own_rank);
  }
}

void Requests::pause(int looks, bool only_ours) {
  if (!only_ours || looks < looks_before_sleep) {
    sched_yield();
    return;
  }
  std::unique_lock lock(mutex_);
  if (std::any_of(started_.begin(), started_.end(), [](const auto& one) { return one->work.done(); })) return;
  const int doublings = std::min(looks - looks_before_sleep, 5);
  one_done_.wait_for(lock, std::min(longest_sleep, shortest_sleep * (1 << doublings)));
}

void Requests::finish_all() {
  for (int looks = 0; started_count_ > 0; ++looks) {
    guarded([&] { complete_done(); });
    keep_mpi_going();
    if (started_count_ > 0) pause(looks, true);
  }
  persistent_.clear();
  persistent_count_ = 0;
  performers_.stop();
}

}  // namespace stretto::mpi_door
