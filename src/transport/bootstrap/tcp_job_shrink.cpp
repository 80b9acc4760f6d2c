#include <fmt/format.h>
#include <sodium.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/packing.hpp"
#include "transport/bootstrap/tcp_job.hpp"

namespace stretto {

JobControl::Survivors TcpJob::shrink(const std::vector<int>& lost, double patience) {
  require(!has_shrunk_, "{}", went_on);
  const std::vector<std::int32_t> names(lost.begin(), lost.end());
  SmallerJob smaller = rank_ == 0 ? admit_survivors(names, patience) : follow_rank_0(names, patience);
  const auto place = std::find(smaller.survivors.begin(), smaller.survivors.end(), rank_);
  if (place == smaller.survivors.end()) fail(ErrorCode::peer_gave_up, "{}", left_behind(rank_));
  const auto rank = static_cast<int>(place - smaller.survivors.begin());
  std::vector<int> ranks = smaller.survivors;
  return {std::unique_ptr<JobControl>(new TcpJob(*this, std::move(smaller), rank)), std::move(ranks)};
}

TcpJob::TcpJob(const TcpJob& larger, SmallerJob smaller, int rank)
    : rank_(rank),
      size_(static_cast<int>(smaller.survivors.size())),
      limit_(larger.limit_),
      silence_limit_(larger.silence_limit_),
      identity_(smaller.identity),
      connections_(std::move(smaller.connections)),
      left_(size_),
      spared_(size_),
      parts_(size_),
      came_(size_),
      goes_on_(size_),
      named_(size_),
      early_(std::move(smaller.came_early)) {
  for (const auto& connection : connections_) {
    const auto place = std::find(smaller.survivors.begin(), smaller.survivors.end(), connection->who().rank);
    connection->renumber(static_cast<int>(place - smaller.survivors.begin()), size_);
  }
  begin_serving();
}

TcpJob::SmallerJob TcpJob::admit_survivors(const std::vector<std::int32_t>& names, double patience) {
  const double deadline = now_seconds() + patience;
  std::unique_lock lock(mutex_);
  note_survivor(0, names);
  const auto is_known = [&](const std::unique_ptr<FrameConnection>& connection) {
    const int rank = connection->who().rank;
    const bool silent = now_seconds() - connection->heard_at() > limit_;
    return goes_on_[rank] || named_[rank] || left_[rank] || !connection->open() || silent || now_seconds() > deadline;
  };
  while (!std::all_of(connections_.begin(), connections_.end(), is_known)) {
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  lock.unlock();
  end_serving();  // the smaller job reads the survivors' frames from now on
  lock.lock();
  SmallerJob smaller;
  randombytes_buf(&smaller.identity, sizeof smaller.identity);
  smaller.survivors = {0};
  for (const auto& connection : connections_) {
    const int rank = connection->who().rank;
    if (goes_on_[rank] && !named_[rank] && !left_[rank] && connection->open()) smaller.survivors.push_back(rank);
  }
  std::sort(smaller.survivors.begin(), smaller.survivors.end());
  Bytes body = bytes_of(std::vector<std::uint64_t>{smaller.identity});
  const Bytes ranks = bytes_of(smaller.survivors);
  body.insert(body.end(), ranks.begin(), ranks.end());
  for (auto& connection : connections_) {
    tell(*connection, FrameKind::shrunk, body);
    if (std::binary_search(smaller.survivors.begin(), smaller.survivors.end(), connection->who().rank)) {
      smaller.connections.push_back(std::move(connection));
    } else {
      connection->end_writing();
    }
  }
  std::erase(connections_, nullptr);
  return smaller;
}

TcpJob::SmallerJob TcpJob::follow_rank_0(const std::vector<std::int32_t>& names, double patience) {
  const double begin = now_seconds();
  std::unique_lock lock(mutex_);
  const FrameConnection& rank0 = *connections_.front();
  tell(*connections_.front(), FrameKind::remain, bytes_of(names));
  while (!shrunk_ && rank0.open() && now_seconds() - begin < 2 * patience + 1) {  // rank 0 may come, and wait, later
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (!shrunk_) {
    throw LostRank0(fmt::format(
        "The job cannot go on without its rank 0, through which the ranks meet, and which {}; start the job again.",
        rank0.open() ? fmt::format("has not called shrink() for {:.0f} s", now_seconds() - begin) : "is lost"));
  }
  lock.unlock();
  end_serving();
  lock.lock();
  SmallerJob smaller = std::move(*shrunk_);
  smaller.connections = std::move(connections_);
  connections_.clear();
  smaller.came_early = std::move(early_);
  return smaller;
}

void TcpJob::note_survivor(int rank, const std::vector<std::int32_t>& names) {
  for (const std::int32_t name : names) {
    ensure(name > 0 && name < size_, "it named rank {} as lost, of {}.", name, size_);
    named_[name] = true;
  }
  goes_on_[rank] = true;
}

void TcpJob::begin_serving() {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) fail(ErrorCode::unavailable, "Rank {} cannot watch its connections: {}.", rank_, errno_text(errno));
  server_ = std::thread([this] { serve(); });
}

void TcpJob::end_serving() {
  note_failure_here(ErrorCode::peer_gave_up, went_on);
  has_shrunk_ = true;
  wake();
  server_.join();
}

}  // namespace stretto
