#include "messages/messages.hpp"

#include <algorithm>
#include <cstring>

#include "messages/channel.hpp"
#include "stretto/error.hpp"

namespace stretto_torch {

Messages::Messages(StorePtr store, stretto::Communicator main)
    : store_(std::move(store)), main_(std::move(main)), rank_(main_.rank()), size_(main_.size()) {}

Messages::~Messages() {
  {
    const std::lock_guard lock(mutex_);
    watching_ = false;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
}

Channel& Messages::channel(int peer) {
  TORCH_CHECK(!closing_, "This group has been destroyed, and takes no more messages.");
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  std::unique_ptr<Channel>& there = channels_[peer];
  if (!there) there = std::make_unique<Channel>(*this, peer);
  return *there;
}

bool Messages::wanted_from(int peer) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Receive& each) { return each.from == peer || each.from == any_source; });
}

void Messages::send(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int to, int tag,
                    Milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  Channel& there = channel(to);
  if (there.broken()) return end_with({work}, there.broken());
  there.push({work, tensor, tag, Clock::now() + timeout});
}

void Messages::receive(const c10::intrusive_ptr<OperationWork>& work, const at::Tensor& tensor, int from, int tag,
                       Milliseconds timeout) {
  const bool whole = tensor.is_contiguous();
  const Receive wanted{work,
                       whole ? tensor : at::empty_like(tensor, tensor.options(), at::MemoryFormat::Contiguous),
                       whole ? at::Tensor() : tensor,
                       from,
                       tag,
                       Clock::now() + timeout};
  std::unique_lock lock(mutex_);
  const auto there = std::find_if(arrived_.begin(), arrived_.end(), [&](const Arrived& each) {
    return each.tag == tag && (from == any_source || each.from == from);
  });
  if (there != arrived_.end()) {
    const Arrived come = std::move(*there);
    arrived_.erase(there);
    lock.unlock();
    work->received_from(come.from);
    return fill(wanted, come.bytes);
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || (from != any_source && from != peer)) continue;
    if (const std::exception_ptr& broken = channel(peer).broken()) return end_with({work}, broken);
  }
  receives_.push_back(wanted);
  changed_.notify_all();
}

void Messages::fill(const Receive& receive, const at::Tensor& bytes) {
  if (receive.tensor.nbytes() != bytes.nbytes()) {
    return receive.work->end(std::make_exception_ptr(stretto::Error(
        stretto::ErrorCode::invalid_argument,
        c10::str("A message with tag ", receive.tag, " from rank ", receive.work->sourceRank(), " has ", bytes.nbytes(),
                 " bytes, and the tensor that receives it has ", receive.tensor.nbytes(), "; give both the same size."))));
  }
  if (bytes.nbytes() > 0 && bytes.data_ptr() != receive.tensor.data_ptr()) {
    std::memcpy(receive.tensor.data_ptr(), bytes.data_ptr(), bytes.nbytes());
  }
  if (receive.copies_to.defined()) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    receive.copies_to.copy_(receive.tensor);
  }
  receive.work->end(nullptr);
}

// A receive from any rank ends too: its message might come from this peer, and then it would never end.
void Messages::end_receives(int peer, Works& ending) {
  for (auto each = receives_.begin(); each != receives_.end();) {
    if (each->from == peer || each->from == any_source) {
      ending.push_back(each->work);
      each = receives_.erase(each);
    } else {
      ++each;
    }
  }
}

void Messages::end_with(Works works, const std::exception_ptr& error) {
  if (!works.empty()) ending_.emplace_back(std::move(works), error);
  changed_.notify_all();
}

std::exception_ptr Messages::late(const Receive& receive) const {
  const std::string from = receive.from == any_source ? "any rank" : c10::str("rank ", receive.from);
  return std::make_exception_ptr(stretto::Error(
      stretto::ErrorCode::timeout, c10::str("Rank ", rank_, " Timed out waiting for a message with tag ", receive.tag,
                                            " from ", from, "; send it, or give the group a longer timeout.")));
}

void Messages::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto now = Clock::now();
    auto next = now + std::chrono::hours(1);
    for (auto each = receives_.begin(); each != receives_.end();) {
      if (each->deadline <= now) {
        end_with({each->work}, late(*each));
        each = receives_.erase(each);
      } else {
        next = std::min(next, each->deadline);
        ++each;
      }
    }
    for (const auto& [peer, channel] : channels_) {
      channel->break_if_late(now);
      next = std::min(next, channel->next_deadline());
    }
    if (!ending_.empty()) {
      const auto ending = std::exchange(ending_, {});
      lock.unlock();
      for (const auto& [works, error] : ending) {
        for (const auto& work : works) work->end(error);
      }
      lock.lock();
      continue;
    }
    if (!watching_) return;
    changed_.wait_until(lock, next);
  }
}

void Messages::leave(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  Works ending;
  for (const Receive& each : receives_) ending.push_back(each.work);
  receives_.clear();
  end_with(std::move(ending), std::make_exception_ptr(stretto::Error(stretto::ErrorCode::invalid_argument,
                                                                     "The group was destroyed before the message came.")));
  const auto all_ended = [&] {
    return std::all_of(channels_.begin(), channels_.end(), [](const auto& each) { return each.second->has_ended(); });
  };
  if (!changed_.wait_until(lock, until, all_ended)) {
    for (const auto& [peer, channel] : channels_) {
      channel->break_with(std::make_exception_ptr(
          stretto::Error(stretto::ErrorCode::peer_gave_up, c10::str("Rank ", peer, " still used a group that was left."))));
    }
  }
  std::map<int, std::unique_ptr<Channel>> going = std::exchange(channels_, {});
  lock.unlock();
  going.clear();
  main_ = {};
}

void Messages::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  closing_ = true;
  for (const auto& [peer, channel] : channels_) {
    channel->break_with(std::make_exception_ptr(stretto::Error(stretto::ErrorCode::peer_gave_up, reason)));
  }
}

}  // namespace stretto_torch
