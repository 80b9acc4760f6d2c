#include "messages/channel.hpp"

#include <poll.h>
#include <unistd.h>

#include "stretto/error.hpp"

namespace stretto_torch {
namespace {

constexpr double unlimited = 1e9;  // seconds; Messages watches the deadlines instead
constexpr std::int64_t head_words = 2;

stretto::Error error_of(stretto::ErrorCode code, const std::string& sentence) { return {code, sentence}; }

}  // namespace

Channel::Channel(Messages& messages, int peer) : all_(messages), peer_(peer) {
  sender_ = std::thread([this] { run(&Channel::send_messages); });
  receiver_ = std::thread([this] { run(&Channel::receive_messages); });
}

Channel::~Channel() {
  sender_.join();
  receiver_.join();
}

void Channel::push(Send send) {
  sends_.push_back(std::move(send));
  all_.changed_.notify_all();
}

// The lower rank opens the meeting, but does not connect before the other rank does: that one may never exchange a message
// with this rank.
bool Channel::connect() {
  const std::lock_guard only_one(connecting_);
  if (connected_) return true;
  const auto goes_on = [&] {
    all_.main_.job().check_ranks();
    const std::lock_guard lock(all_.mutex_);
    return !broken_ && (!all_.closing_ || !sends_.empty());
  };
  const bool first = all_.rank_ < peer_;
  const std::string key =
      "stretto/messages/" + std::to_string(std::min(all_.rank_, peer_)) + "-" + std::to_string(std::max(all_.rank_, peer_));
  stretto::MeetingPoint point;
  if (first) {
    point = stretto::open_meeting(own_address(all_.store_));
    publish_meeting(all_.store_, key, point);
    pollfd knock{point.listener, POLLIN, 0};
    const auto close_meeting = [&] {
      close(point.listener);
      all_.store_->deleteKey(key);  // a later group over the same store must not read it
    };
    try {
      while (poll(&knock, 1, 50) <= 0) {
        if (goes_on()) continue;
        close_meeting();
        return false;
      }
    } catch (...) {
      close_meeting();
      throw;
    }
  } else {
    if (!await_key(all_.store_, key, goes_on)) return false;
    point = read_meeting(all_.store_, key);
  }
  point.timeout = 10;  // both ranks are present
  const stretto::Communicator forth = stretto::connect(first ? 0 : 1, 2, point);
  if (first) all_.store_->deleteKey(key);  // see meet()
  forth.job().set_timeout(unlimited);
  forth.job().set_leave_timeout(leave_seconds);
  const stretto::Communicator back = forth.duplicate("back");
  const std::lock_guard lock(all_.mutex_);
  out_ = first ? forth : back;
  in_ = first ? back : forth;
  connected_ = true;
  if (broken_) out_.job().abort("a message between the two could not be delivered.");
  return !broken_;
}

void Channel::run(void (Channel::*loop)()) {
  std::exception_ptr error;
  try {
    (this->*loop)();
  } catch (...) {
    error = in_our_words(std::current_exception());
  }
  Lock lock(all_.mutex_);
  if (error) break_with(error);
  ++ended_;
  all_.changed_.notify_all();
}

void Channel::send_messages() {
  const stretto::Stream stream = stretto::Stream::inline_();
  Lock lock(all_.mutex_);
  while (true) {
    all_.changed_.wait(lock, [&] { return !sends_.empty() || all_.closing_ || broken_; });
    if (broken_) return;
    if (sends_.empty()) break;
    const Send& next = sends_.front();
    const Head head{next.tag, static_cast<std::int64_t>(next.tensor.nbytes())};
    const at::Tensor tensor = next.tensor;
    lock.unlock();
    if (!connect()) return;
    const int there = 1 - out_.rank();
    out_.send(&head, head_words, stretto::DType::i64, there, stream).wait();
    if (head.bytes > 0) out_.send(tensor.data_ptr(), head.bytes, stretto::DType::u8, there, stream).wait();
    lock.lock();
    if (broken_) return;
    const auto work = sends_.front().work;
    sends_.pop_front();
    all_.changed_.notify_all();
    lock.unlock();
    work->end(nullptr);
    lock.lock();
  }
  lock.unlock();
  const std::lock_guard not_while_it_connects(connecting_);
  if (!connected_) return;
  const Head last{0, -1};
  out_.send(&last, head_words, stretto::DType::i64, 1 - out_.rank(), stream).wait();
}

void Channel::receive_messages() {
  Lock lock(all_.mutex_);
  while (true) {
    all_.changed_.wait(lock, [&] { return all_.wanted_from(peer_) || all_.closing_ || broken_; });
    if (broken_) return;
    lock.unlock();
    if (!connect()) return;
    Head head{};
    in_.recv(&head, head_words, stretto::DType::i64, 1 - in_.rank(), stretto::Stream::inline_()).wait();
    lock.lock();
    if (head.bytes < 0) {
      if (all_.closing_) return;
      throw error_of(stretto::ErrorCode::peer_gave_up, "it has left the group.");
    }
    receive_message(lock, head);
  }
}

// Receives into the tensor of a matching receive. If there is none, keeps the message, unless a receive has come meanwhile.
void Channel::receive_message(Lock& lock, const Head& head) {
  const auto take_fitting = [&] {
    std::optional<Messages::Receive> fitting;
    for (auto each = all_.receives_.begin(); each != all_.receives_.end(); ++each) {
      if ((each->from != peer_ && each->from != Messages::any_source) || each->tag != head.tag) continue;
      fitting = std::move(*each);
      all_.receives_.erase(each);
      break;
    }
    return fitting;
  };
  receiving_ = take_fitting();
  const bool direct = receiving_ && static_cast<std::int64_t>(receiving_->tensor.nbytes()) == head.bytes;
  at::Tensor bytes = direct ? receiving_->tensor : at::Tensor();
  lock.unlock();
  if (!direct) bytes = at::empty({head.bytes}, at::kByte);
  if (head.bytes > 0) {
    in_.recv(bytes.data_ptr(), head.bytes, stretto::DType::u8, 1 - in_.rank(), stretto::Stream::inline_()).wait();
  }
  lock.lock();
  if (broken_) return;
  if (!receiving_) receiving_ = take_fitting();
  if (!receiving_) {
    if (!all_.closing_) all_.arrived_.push_back({peer_, head.tag, bytes});
    return;
  }
  const Messages::Receive ended = std::move(*receiving_);
  receiving_.reset();
  lock.unlock();
  ended.work->received_from(peer_);
  Messages::fill(ended, bytes);
  lock.lock();
}

Messages::Clock::time_point Channel::next_deadline() const {
  auto next = Messages::Clock::time_point::max();
  for (const Send& send : sends_) next = std::min(next, send.deadline);
  if (receiving_) next = std::min(next, receiving_->deadline);
  return next;
}

void Channel::break_if_late(Messages::Clock::time_point now) {
  if (broken_ || next_deadline() > now) return;
  const bool sends = receiving_ == std::nullopt || receiving_->deadline > now;
  break_with(std::make_exception_ptr(
      error_of(stretto::ErrorCode::timeout, c10::str("Rank ", all_.rank_, " Timed out waiting for rank ", peer_, " to ",
                                                     sends ? "take a message from it." : "send the rest of a message."))));
}

void Channel::break_with(const std::exception_ptr& error) {
  if (broken_) return;
  broken_ = error;
  // Works that end here call the program's callbacks, which must not run under the mutex. So the watcher thread ends them.
  std::vector<c10::intrusive_ptr<OperationWork>> ending;
  for (const Send& send : sends_) ending.push_back(send.work);
  sends_.clear();
  if (receiving_) ending.push_back(receiving_->work);
  receiving_.reset();
  all_.end_receives(peer_, ending);
  all_.end_with(std::move(ending), error);
  if (out_) {
    try {
      out_.job().abort("a message between the two could not be delivered.");
    } catch (const std::exception&) {  // it has ended already
    }
  }
  all_.changed_.notify_all();
}

// The job of two knows its ranks only as 0 and 1. The group's communicator learns of a lost rank a moment later, and has a
// better sentence, so this waits for it up to a second.
std::exception_ptr Channel::in_our_words(const std::exception_ptr& error) const {
  using stretto::ErrorCode;
  try {
    std::rethrow_exception(error);
  } catch (const stretto::Error& known) {
    try {
      for (int look = 0; known.code() == ErrorCode::peer_lost && look < 50; ++look) {
        all_.main_.job().check_ranks();
        std::this_thread::sleep_for(Milliseconds(20));
      }
    } catch (...) {
      return std::current_exception();
    }
    std::string what = known.what();
    if (known.code() == ErrorCode::peer_lost) what = "its process ended, or the connection to it broke.";
    return std::make_exception_ptr(
        error_of(known.code(), c10::str("Rank ", all_.rank_, " cannot exchange messages with rank ", peer_, ": ", what)));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace stretto_torch
