#include "server/live_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "collectives/communicator/group.hpp"
#include "collectives/execution/run_until_done.hpp"

namespace stretto {
namespace {

// Whoever is lost, the job's sentence begins with its rank: that, or -1, and the characters up to behind it.
std::pair<int, int> rank_in(const Error& error) {
  int rank = -1, end = 0;
  return std::sscanf(error.what(), "Rank %d%n", &rank, &end) == 1 ? std::pair(rank, end) : std::pair(-1, 0);
}

}  // namespace

LiveRanks::LiveRanks(const Communicator& ranks, const ServedLayout& layout)
    : layout_(layout),
      ranks_(ranks),
      rank_(ranks.rank()),
      names_(static_cast<std::size_t>(ranks.size())),
      numbers_(names_.size()) {
  std::iota(names_.begin(), names_.end(), 0);
  std::iota(numbers_.begin(), numbers_.end(), 0);
  mailbox_.emplace(ranks_.duplicate("servers"), partners(), layout.options.inbox_bytes);
}

const JobControl& LiveRanks::job() const { return Communicator::Group::of(ranks_).context().job(); }

// Workers talk to all servers, and servers to all workers; with copies also to other servers.
std::vector<int> LiveRanks::partners() const {
  const bool is_server = layout_.is_server(rank_);
  std::vector<int> numbers;
  for (std::size_t n = 0; n < names_.size(); ++n) {
    const bool both_serve = is_server && layout_.is_server(names_[n]);
    if (names_[n] == rank_ || (is_server == layout_.is_server(names_[n]) &&
                               !(both_serve && layout_.options.copies + layout_.options.spares > 0))) {
      continue;
    }
    numbers.push_back(static_cast<int>(n));
  }
  return numbers;
}

void LiveRanks::send(int to, const MessageHead& head, const Tensor& bytes, std::optional<int> priority) {
  if (!has(to)) return;
  naming_losses(job(), [&] { mailbox_->send(number_of(to), head, bytes, priority); });
}

void LiveRanks::send_all() {
  naming_losses(job(), [&] { mailbox_->send_all(); });
}

ReceivedMessage LiveRanks::receive() {
  ReceivedMessage message;
  naming_losses(job(), [&] { message = mailbox_->receive(); });
  message.from = names_[static_cast<std::size_t>(message.from)];
  return message;
}

std::optional<ReceivedMessage> LiveRanks::receive_unless(const std::function<bool()>& enough) {
  std::optional<ReceivedMessage> message;
  naming_losses(job(), [&] { message = mailbox_->receive_unless(enough); });
  if (message) message->from = names_[static_cast<std::size_t>(message->from)];
  return message;
}

std::optional<ReceivedMessage> LiveRanks::try_receive() {
  std::optional<ReceivedMessage> message;
  naming_losses(job(), [&] { message = mailbox_->try_receive(); });
  if (message) message->from = names_[static_cast<std::size_t>(message->from)];
  return message;
}

int LiveRanks::open_workers() const {
  int open = 0;
  for (int worker = 0; worker < layout_.workers; ++worker) open += is_open(worker) ? 1 : 0;
  return open;
}

bool LiveRanks::any_server_open() const {
  for (int server = layout_.workers; server < layout_.ranks; ++server) {
    if (server != rank_ && is_open(server)) return true;
  }
  return false;
}

Mailbox::Traffic LiveRanks::traffic() const {
  Mailbox::Traffic sum = earlier_;
  if (mailbox_) {
    sum.payload_sent += mailbox_->traffic().payload_sent;
    sum.heads_sent += mailbox_->traffic().heads_sent;
    sum.messages_sent += mailbox_->traffic().messages_sent;
  }
  return sum;
}

std::vector<int> LiveRanks::lost() const {
  std::vector<int> lost;
  for (int rank = 0; rank < layout_.ranks; ++rank) {
    if (!has(rank)) lost.push_back(rank);
  }
  return lost;
}

void LiveRanks::shrink() {
  // A job numbers its ranks as the smaller job's communicator does; the first communicator may have another order.
  std::vector<int> names_in_job(names_.size());
  for (std::size_t n = 0; n < names_.size(); ++n) {
    names_in_job[static_cast<std::size_t>(ranks_.job_ranks()[n])] = names_[n];
  }
  std::vector<int> survivors;
  const Communicator fewer = ranks_.job().shrink({}, &survivors);
  earlier_ = traffic();
  mailbox_.reset();
  ranks_ = fewer;
  names_.clear();
  for (const int survivor : survivors) names_.push_back(names_in_job[static_cast<std::size_t>(survivor)]);
  std::ranges::fill(numbers_, -1);
  for (std::size_t n = 0; n < names_.size(); ++n) numbers_[static_cast<std::size_t>(names_[n])] = static_cast<int>(n);
}

void LiveRanks::open() { mailbox_.emplace(ranks_.duplicate("servers"), partners(), layout_.options.inbox_bytes); }

std::optional<int> LiveRanks::lost_by(const Error& error) const {
  const int in_job = rank_in(error).first;
  const std::vector<int>& job_ranks = ranks_.job_ranks();
  const auto found = std::ranges::find(job_ranks, in_job);
  if (found == job_ranks.end()) return std::nullopt;
  return rank_of(static_cast<int>(found - job_ranks.begin()));
}

std::string LiveRanks::with_own_number(const Error& error) const {
  const std::optional<int> lost = lost_by(error);
  if (!lost) return error.what();
  return fmt::format("Rank {}{}", *lost, error.what() + rank_in(error).second);
}

}  // namespace stretto
