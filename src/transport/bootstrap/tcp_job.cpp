#include "transport/bootstrap/tcp_job.hpp"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "core/fail.hpp"
#include "stretto/stream.hpp"
#include "transport/bootstrap/admission.hpp"
#include "transport/bootstrap/packing.hpp"

namespace stretto {

std::string TcpJob::begins_sentence(const RankIntroduction& who) { return fmt::format("R{}", who.to_string().substr(1)); }

std::string TcpJob::describe_silence(const RankIntroduction& who, double seconds) {
  return fmt::format("{} has given no sign of life for {:.0f} s: it is stopped, or its host or the network to it is gone.",
                     begins_sentence(who), seconds);
}

TcpJob::TcpJob(int rank, int size, const Meeting& meeting)
    : rank_(rank),
      size_(size),
      limit_(meeting.timeout),
      silence_limit_(meeting.silence),
      left_(size),
      spared_(size),
      parts_(size),
      came_(size),
      goes_on_(size),
      named_(size) {
  const RankIntroduction self = introduce(rank, size, meeting.job);
  if (rank == 0) {
    randombytes_buf(&identity_, sizeof identity_);
    try {
      admit_ranks(self, meeting, identity_, [&](const RankIntroduction& who, Socket socket) {
        connections_.push_back(std::make_unique<FrameConnection>(std::move(socket), who));
      });
    } catch (const Error& error) {  // ranks that came must not think that this rank crashed
      const bool one_died = error.code() == ErrorCode::peer_lost;
      send_failure(one_died ? ErrorCode::peer_lost : ErrorCode::peer_gave_up,
                   one_died ? error.what() : fmt::format("Rank 0 gave up: {}", error.what()), nullptr);
      closing_ = true;
      serve();
      throw;
    }
  } else {
    Admission admission = arrive(meeting, self);
    identity_ = admission.identity;
    connections_.push_back(std::make_unique<FrameConnection>(std::move(admission.socket), admission.rank0));
  }
  begin_serving();
}

TcpJob::~TcpJob() {
  closing_ = true;
  wake();
  if (server_.joinable()) server_.join();
  close(wake_);
}

std::vector<Bytes> TcpJob::exchange(const Bytes& mine) {
  const double begin = now_seconds();
  check();
  std::unique_lock lock(mutex_);
  const std::uint64_t number = exchanges_;
  if (rank_ == 0) {
    contribute(0, mine);
  } else {
    tell(*connections_.front(), FrameKind::contribution, mine);
  }
  const auto over = [&] { return exchanges_ != number || failed_; };
  while (!changed_.wait_for(lock, std::chrono::milliseconds(100), over)) {
    if (!is_late(now_seconds() - begin)) continue;
    const std::string sentence = name_late();
    lock.unlock();
    note_failure(ErrorCode::timeout, sentence, nullptr);
    lock.lock();
  }
  if (exchanges_ == number) throw_failure();
  return result_;
}

void TcpJob::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw_failure();
}

std::string TcpJob::loss_of(int rank) const {
  if (!any_left()) return "";
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(rank);
  return found == losses_.end() ? "" : found->second;
}

void TcpJob::spare(const std::vector<int>& ranks, int calls) {
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) spared_[rank] += rank_ == 0 && rank != 0 ? calls : 0;
}

void TcpJob::abort(const std::string& reason) {
  note_failure(ErrorCode::peer_gave_up, fmt::format("Rank {} gave up: {}", rank_, reason), nullptr);
}

bool TcpJob::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return left_[rank];
}

std::string TcpJob::news_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return news_of_locked(rank);
}

void TcpJob::leave(double timeout) {
  std::unique_lock lock(mutex_);
  if (has_shrunk_) return;
  if (rank_ == 0) {
    note_left(0);
  } else {
    tell(*connections_.front(), FrameKind::bye, {});
  }
  const std::chrono::duration<double> patience(timeout);
  if (!changed_.wait_for(lock, patience, [&] { return all_left_ || failed_; })) {
    lock.unlock();
    return abort(left_early(timeout));
  }
  changed_.wait_for(lock, grace_after_failure, [&] { return all_left_; });
}

std::vector<RankAccount> TcpJob::ask(const std::vector<int>& ranks, double seconds, const OperationId& wanted) {
  const std::lock_guard asking(asking_);
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  for (const int rank : ranks) pass_on(FrameKind::question, {rank_, rank, {.text = {}, .waits_for = {}, .asked = wanted}});
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    const bool nobody_passes_on = rank_ != 0 && silence_of(0);
    return nobody_passes_on ||
           std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return answers_.count(rank) > 0 || silence_of(rank); });
  });
  std::vector<RankAccount> accounts;
  accounts.reserve(ranks.size());
  for (const int rank : ranks) accounts.push_back(answers_[rank]);
  // An answer that comes too late belongs to an earlier question.
  for (RankAccount& account : accounts) {
    if (account.asked != wanted) account.held_up_in = {};
  }
  return accounts;
}

bool TcpJob::is_late(double seconds) const {
  if (rank_ == 0) return seconds > limit_;
  return seconds > (is_silent(*connections_.front()) ? limit_ : 2 * limit_) + 1;
}

bool TcpJob::is_silent(const FrameConnection& connection) {
  return now_seconds() - connection.heard_at() > seconds_to_be_silent;
}

std::string TcpJob::name_late() const {
  std::string sentence = fmt::format("Rank {} waited {} s in the start of the job.", rank_, limit_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank_ == 0 ? !came_[rank] : rank == 0)
      sentence += fmt::format(" Rank {} did not take part. {}", rank, news_of_locked(rank));
  }
  return sentence;
}

std::string TcpJob::news_of_locked(int rank) const {
  if (rank == rank_) return "";
  if (const auto loss = losses_.find(rank); loss != losses_.end()) return loss->second;
  if (left_[rank]) return fmt::format("Rank {} has left the job.", rank);
  if (const auto silent = silence_of(rank)) return describe_silence(silent->who, silent->seconds);
  for (const auto& connection : connections_) {
    if (connection->who().rank != rank) continue;
    return fmt::format("{} is alive: it computes, or waits for something else.", begins_sentence(connection->who()));
  }
  return fmt::format("Rank {} is alive: it computes, or waits for something else.", rank);
}

std::optional<TcpJob::SilentRank> TcpJob::silence_of(int rank) const {
  for (const auto& connection : connections_) {
    if (connection->who().rank != rank) continue;
    if (!is_silent(*connection)) return std::nullopt;
    return SilentRank{connection->who(), now_seconds() - connection->heard_at()};
  }
  const auto found = std::ranges::find(silent_, rank, [](const SilentRank& one) { return one.who.rank; });
  return found == silent_.end() ? std::nullopt : std::optional(*found);
}

void TcpJob::contribute(int rank, const Bytes& part) {
  ensure(!came_[rank], "rank {} contributed twice to one exchange.", rank);
  came_[rank] = true;
  parts_[rank] = part;
  if (failed_) return;  // ranks that have heard of it have given up this exchange
  if (std::find(came_.begin(), came_.end(), false) != came_.end()) return;
  came_.assign(came_.size(), false);
  result_ = parts_;
  ++exchanges_;
  const Bytes all = packed(result_);
  for (const auto& connection : connections_) tell(*connection, FrameKind::result, all);
  changed_.notify_all();
}

void TcpJob::note_left(int rank) {
  left_[rank] = true;
  any_left_ = true;
  if (rank_ != 0) return;
  newly_left_.push_back(rank);
  announce_if_all_left();
}

void TcpJob::announce_if_all_left() {
  if (all_left_) return;
  for (int rank = 0; rank < size_; ++rank) {
    const bool is_lost = failure_is_told_ && rank != 0 && silence_of(rank);
    if (!left_[rank] && !is_lost) return;
  }
  all_left_ = true;
  newly_left_.clear();
  for (const auto& connection : connections_) tell(*connection, FrameKind::all_left, {});
  changed_.notify_all();
}

std::unique_ptr<JobControl> join_tcp_job(int rank, int size, const Meeting& meeting) {
  return std::make_unique<TcpJob>(rank, size, meeting);
}

}  // namespace stretto
