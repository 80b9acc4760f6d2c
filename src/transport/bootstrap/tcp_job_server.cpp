#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/packing.hpp"
#include "transport/bootstrap/tcp_job.hpp"

namespace stretto {
namespace {

constexpr double seconds_between_signs = 1;  // of life, in both directions
// Added to the limit of silence, so that an operation whose timeout is as long fails first: its error says more. The last
// sign of life came up to a second before the rank stopped.
constexpr double seconds_for_an_operation = 1.25;
constexpr double seconds_to_part = 1;  // for frames in flight when a job ends

Bytes with_text(std::uint32_t number, const std::string& text) {
  Bytes body = bytes_of(std::vector<std::uint32_t>{number});
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  body.insert(body.end(), bytes, bytes + text.size());
  return body;
}

std::pair<std::uint32_t, std::string> number_and_text(const Bytes& body) {
  std::uint32_t number = 0;
  ensure(body.size() >= sizeof number, "its last message is truncated.");
  std::memcpy(&number, body.data(), sizeof number);
  return {number, {reinterpret_cast<const char*>(body.data()) + sizeof number, body.size() - sizeof number}};
}

}  // namespace

void TcpJob::serve() {
  double next_signs = now_seconds() + seconds_between_signs;
  double end = 0;                                // 0: not closing
  for (const auto& connection : connections_) {  // a larger job may have read from it, and seen its end
    read_from(*connection, [&] {
      for (const Frame& frame : std::exchange(early_, {})) take(*connection, frame.kind, frame.body);
    });
    if (!connection->open()) note_end_of(*connection);
  }
  while (!has_shrunk_) {
    const double now = now_seconds();
    if (closing_ && end == 0) end = now + seconds_to_part;
    std::vector<pollfd> wanted{{wake_, POLLIN, 0}};
    std::vector<FrameConnection*> open;
    for (const auto& connection : connections_) {
      if (!connection->open()) continue;
      const bool writes = connection->has_unsent();
      // Reads to the end: if a socket is closed with unread bytes, the other side may lose those that it has not read. A
      // silent rank reads nothing.
      if (end != 0 && is_silent(*connection)) continue;
      if (end != 0 && !writes) connection->end_writing();
      wanted.push_back({connection->descriptor(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
      open.push_back(connection.get());
    }
    if (end != 0 && (open.empty() || now >= end)) return;
    if (end == 0 && now >= next_signs) {
      give_signs();
      next_signs = now + seconds_between_signs;
    }
    const double wakes = end != 0 ? end : std::min(next_signs, give_up_silent(now));
    poll(wanted.data(), wanted.size(), static_cast<int>((wakes - now) * 1000) + 1);
    std::uint64_t rings = 0;
    if (wanted[0].revents != 0) [[maybe_unused]]
      const ssize_t taken = read(wake_, &rings, sizeof rings);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if ((wanted[i + 1].revents & POLLOUT) != 0) open[i]->flush();
      if ((wanted[i + 1].revents & ~POLLOUT) != 0) receive(*open[i], end != 0);
    }
  }
}

void TcpJob::receive(FrameConnection& connection, bool only_to_its_end) {
  read_from(connection, [&] {
    const bool goes_on = connection.receive([&](FrameKind kind, const Bytes& body) {
      if (!only_to_its_end) take(connection, kind, body);
    });
    if (goes_on) return;
    connection.close();
    if (!only_to_its_end) note_end_of(connection);
  });
}

void TcpJob::read_from(FrameConnection& connection, const std::function<void()>& reads) {
  try {
    reads();
  } catch (const std::exception& error) {
    connection.close();
    note_loss(connection.who().rank, ErrorCode::peer_lost,
              fmt::format("The connection to {} was given up: {}", connection.who().to_string(), error.what()), nullptr);
  }
}

void TcpJob::take(const FrameConnection& connection, FrameKind kind, const Bytes& body) {
  if (keep_for_smaller_job(kind, body)) return;
  const bool to_rank_0 =
      kind == FrameKind::contribution || kind == FrameKind::bye || kind == FrameKind::alive || kind == FrameKind::remain;
  const bool either_way = kind == FrameKind::failed || kind == FrameKind::question || kind == FrameKind::answer;
  ensure(either_way || to_rank_0 == (rank_ == 0), "it sent a message that only rank {} 0 sends.",
         to_rank_0 ? "other than" : "");
  if (kind == FrameKind::failed) {
    const auto [code, sentence] = number_and_text(body);
    return note_loss(connection.who().rank, static_cast<ErrorCode>(code), sentence, &connection);
  }
  if (kind == FrameKind::question || kind == FrameKind::answer) {
    Question question = question_of(body);
    if (fits(question, size_)) pass_on(kind, std::move(question));
    return;
  }
  const std::lock_guard lock(mutex_);
  switch (kind) {
    case FrameKind::contribution: return contribute(connection.who().rank, body);
    case FrameKind::bye: return note_left(connection.who().rank);
    case FrameKind::remain: note_survivor(connection.who().rank, values_of<std::int32_t>(body)); break;
    case FrameKind::result:
      result_ = unpacked(body, size_);
      ++exchanges_;
      break;
    case FrameKind::left:
      for (const std::int32_t rank : values_of<std::int32_t>(body)) {
        ensure(rank >= 0 && rank < size_, "it said that rank {} has left, of {}.", rank, size_);
        left_[rank] = true;
      }
      any_left_ = true;
      break;
    case FrameKind::lost: {
      const auto [number, sentence] = number_and_text(body);
      const auto rank = static_cast<int>(number);
      ensure(rank > 0 && rank < size_, "it said that rank {} is lost, of {}.", rank, size_);
      losses_[rank] = sentence;
      left_[rank] = true;
      any_left_ = true;
      break;
    }
    case FrameKind::silent: silent_ = values_of<SilentRank>(body); break;
    case FrameKind::all_left: all_left_ = left_[0] = true; break;
    case FrameKind::alive:
    case FrameKind::question:
    case FrameKind::answer:
    case FrameKind::shrunk:
    case FrameKind::failed: break;
  }
  changed_.notify_all();
}

bool TcpJob::keep_for_smaller_job(FrameKind kind, const Bytes& body) {
  std::unique_lock lock(mutex_);
  if (shrunk_) {
    early_.push_back({kind, body});
    return true;
  }
  if (kind != FrameKind::shrunk || rank_ == 0) return false;
  SmallerJob smaller;
  ensure(body.size() >= sizeof smaller.identity, "its list of the ranks that go on is truncated.");
  std::memcpy(&smaller.identity, body.data(), sizeof smaller.identity);
  smaller.survivors = values_of<std::int32_t>(Bytes(body.begin() + sizeof smaller.identity, body.end()));
  const bool goes_on = std::find(smaller.survivors.begin(), smaller.survivors.end(), rank_) != smaller.survivors.end();
  shrunk_ = std::move(smaller);
  changed_.notify_all();
  lock.unlock();
  if (!goes_on) note_failure_here(ErrorCode::peer_gave_up, left_behind(rank_));
  return true;
}

void TcpJob::give_signs() {
  const double now = now_seconds();
  std::vector<SilentRank> silent;
  std::vector<std::int32_t> left;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& connection : connections_) {
      if (!connection->open() || left_[connection->who().rank] || !is_silent(*connection)) continue;
      silent.push_back({connection->who(), now - connection->heard_at()});
    }
    std::swap(left, newly_left_);
  }
  for (const auto& connection : connections_) {
    if (!left.empty()) tell(*connection, FrameKind::left, bytes_of(left));
    if (connection->has_unsent()) continue;
    if (rank_ == 0) {
      tell(*connection, FrameKind::silent, bytes_of(silent));
    } else {
      tell(*connection, FrameKind::alive, {});
    }
  }
}

double TcpJob::give_up_silent(double now) {
  double next = std::numeric_limits<double>::infinity();
  for (const auto& connection : connections_) {
    if (!connection->open() || has_left(connection->who().rank)) continue;
    const double limit = connection->heard_at() + std::max(silence_limit_ + seconds_for_an_operation, seconds_to_be_silent);
    if (limit > now) {
      next = std::min(next, limit);
    } else {
      note_loss(connection->who().rank, ErrorCode::timeout,
                describe_silence(connection->who(), now - connection->heard_at()), nullptr);
    }
  }
  return next;
}

void TcpJob::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void TcpJob::tell(FrameConnection& connection, FrameKind kind, const Bytes& body) {
  if (!connection.send(kind, body.data(), body.size())) wake();
}

void TcpJob::pass_on(FrameKind kind, Question question) {
  const int to = kind == FrameKind::question ? question.about : question.from;
  if (to == rank_ && kind == FrameKind::question) {
    question.answer = observed()->account(question.from, question.answer.asked);
    return pass_on(FrameKind::answer, std::move(question));
  }
  if (to == rank_) {
    const std::lock_guard lock(mutex_);
    answers_[question.about] = std::move(question.answer);
    changed_.notify_all();
    return;
  }
  const Bytes body = bytes_of(question);
  for (const auto& connection : connections_) {
    if ((rank_ != 0 || connection->who().rank == to) && connection->open()) tell(*connection, kind, body);
  }
}

void TcpJob::note_end_of(const FrameConnection& connection) {
  const RankIntroduction& who = connection.who();
  {
    const std::lock_guard lock(mutex_);
    if (left_[who.rank]) return;
    note_left(who.rank);
    if (rank_ != 0) all_left_ = true;  // rank 0, which would announce it, is gone
  }
  const int error = connection.end_error();
  const bool unreachable = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  note_loss(who.rank, ErrorCode::peer_lost,
            unreachable ? fmt::format("{} can no longer be reached ({}): its host or the network to it is gone.",
                                      begins_sentence(who), errno_text(error))
                        : fmt::format("{} ended without a word: it was killed or crashed, or has called exit.",
                                      begins_sentence(who)),
            nullptr);
}

void TcpJob::note_loss(int rank, ErrorCode code, const std::string& sentence, const FrameConnection* heard_from) {
  {
    const std::lock_guard lock(mutex_);
    if (losses_.contains(rank)) return;
    if (spared_[rank] > 0 && !failed_) {
      losses_[rank] = sentence;
      if (!left_[rank]) note_left(rank);
      changed_.notify_all();
    }
  }
  if (loss_of(rank).empty()) return note_failure(code, sentence, heard_from);
  const Bytes lost = with_text(static_cast<std::uint32_t>(rank), sentence);
  const Bytes to_itself = with_text(static_cast<std::uint32_t>(ErrorCode::peer_gave_up), left_behind(rank));  // if it runs
  for (const auto& connection : connections_) {
    if (!connection->open()) continue;
    const bool is_its = connection->who().rank == rank;
    tell(*connection, is_its ? FrameKind::failed : FrameKind::lost, is_its ? to_itself : lost);
  }
}

void TcpJob::note_failure(ErrorCode code, const std::string& sentence, const FrameConnection* heard_from) {
  if (!note_failure_here(code, sentence)) return;
  send_failure(code, sentence, heard_from);
  {
    const std::lock_guard lock(mutex_);
    failure_is_told_ = true;
    if (rank_ == 0) announce_if_all_left();
  }
  observed()->trouble(sentence);
}

bool TcpJob::note_failure_here(ErrorCode code, const std::string& sentence) {
  const std::lock_guard lock(mutex_);
  if (failed_) return false;
  failure_code_ = code;
  failure_ = sentence;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
  return true;
}

void TcpJob::send_failure(ErrorCode code, const std::string& sentence, const FrameConnection* except) {
  const Bytes body = with_text(static_cast<std::uint32_t>(code), sentence);
  for (const auto& connection : connections_) {
    if (connection.get() != except && connection->open()) tell(*connection, FrameKind::failed, body);
  }
}

}  // namespace stretto
