#include "server/mailbox.hpp"

#include <algorithm>
#include <limits>

#include "collectives/communicator/group.hpp"
#include "collectives/execution/run_until_done.hpp"
#include "core/fail.hpp"
#include "core/rank_list.hpp"
#include "transport/links.hpp"

namespace stretto {

Mailbox::Mailbox(Communicator ranks, const std::vector<int>& partners, std::size_t most_inbox_bytes)
    : ranks_(std::move(ranks)), links_(Communicator::Group::of(ranks_).links()), most_inbox_bytes_(most_inbox_bytes) {
  for (const int rank : partners) {
    auto& partner = *partners_.emplace_back(std::make_unique<Partner>());
    partner.rank = rank;
    await_head(partner);
  }
}

Mailbox::~Mailbox() {
  for (const auto& partner : partners_) cancel(*partner);
}

void Mailbox::cancel(Partner& partner) {
  Link& link = links_.to(partner.rank, Links::message_lane);
  const auto is_under_way = [](const Transfer& transfer) { return transfer.started > transfer.moved; };
  if (is_under_way(partner.transfer)) link.cancel(partner.transfer);
  if (!partner.outgoing.empty() && is_under_way(partner.outgoing.front()->transfer)) {
    link.cancel(partner.outgoing.front()->transfer);
  }
}

Mailbox::Partner& Mailbox::partner(int rank) const {
  const auto found = std::ranges::find_if(partners_, [&](const auto& each) { return each->rank == rank; });
  require(found != partners_.end(), "Rank {} is no partner of this mailbox.", rank);
  return **found;
}

void Mailbox::send(int to, MessageHead head, const Tensor& bytes, std::optional<int> priority) {
  head.bytes = bytes ? bytes.bytes() : 0;
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->head = head;
  outgoing->bytes = bytes;
  outgoing->priority = priority;
  outgoing->transfer.source = reinterpret_cast<const std::byte*>(&outgoing->head);
  outgoing->transfer.bytes = sizeof(MessageHead);
  traffic_.payload_sent += head.bytes;
  traffic_.heads_sent += sizeof(MessageHead);
  ++traffic_.messages_sent;
  Partner& its = partner(to);
  ++queued_[head.request];
  auto at = its.outgoing.end();
  const auto passes = [&](const Outgoing& other) { return priority && other.priority && *other.priority < *priority; };
  // The first one may have begun.
  while (at - its.outgoing.begin() > 1 && passes(**std::prev(at))) --at;
  its.outgoing.insert(at, std::move(outgoing));
  progress_sends(its);
}

// Returns whether this transfer has moved: a link also says so of others that share its connections, without an end.
bool Mailbox::progress(const Partner& partner, Transfer& transfer) {
  const std::size_t before = transfer.started + transfer.moved;
  links_.to(partner.rank, Links::message_lane).progress(transfer);
  return transfer.started + transfer.moved != before;
}

bool Mailbox::progress_sends(Partner& partner) {
  bool moved = false;
  while (!partner.outgoing.empty()) {
    Outgoing& next = *partner.outgoing.front();
    moved |= progress(partner, next.transfer);
    if (!next.transfer.complete()) break;
    if (!next.head_sent && next.head.bytes > 0) {
      next.head_sent = true;
      next.transfer = {};
      next.transfer.source = static_cast<const std::byte*>(next.bytes.raw());
      next.transfer.bytes = next.head.bytes;
      continue;
    }
    forget(next);
    partner.outgoing.pop_front();
    moved = true;
  }
  return moved;
}

void Mailbox::await_head(Partner& partner) {
  partner.receives_bytes = false;
  partner.transfer = {};
  partner.transfer.destination = reinterpret_cast<std::byte*>(&partner.head);
  partner.transfer.bytes = sizeof(MessageHead);
}

void Mailbox::arrived(Partner& partner) {
  inbox_bytes_ += partner.head.bytes;
  inbox_.push_back({partner.rank, partner.head, std::move(partner.bytes)});
  partner.bytes = {};
  await_head(partner);
}

bool Mailbox::progress_receives(Partner& partner) {
  bool moved = false;
  while (partner.open) {
    if (partner.waits_for_room) {
      if (inbox_bytes_ > most_inbox_bytes_) break;
      partner.waits_for_room = false;
    } else {
      moved |= progress(partner, partner.transfer);
      if (!partner.transfer.complete()) break;
      moved = true;
      if (partner.receives_bytes || partner.head.bytes == 0) {
        arrived(partner);
        // A head that is waited for may always come; what close() says must be known before the next one is.
        break;
      }
      if (inbox_bytes_ > most_inbox_bytes_) {
        partner.waits_for_room = true;
        break;
      }
    }
    partner.bytes = Tensor({static_cast<std::int64_t>(partner.head.bytes)}, DType::u8, Device::cpu);
    partner.receives_bytes = true;
    partner.transfer = {};
    partner.transfer.destination = static_cast<std::byte*>(partner.bytes.raw());
    partner.transfer.bytes = partner.head.bytes;
  }
  return moved;
}

bool Mailbox::progress() {
  bool moved = false;
  for (std::size_t i = 0; i < partners_.size(); ++i) {
    Partner& partner = *partners_[(first_ + i) % partners_.size()];
    moved |= progress_sends(partner);
    moved |= progress_receives(partner);
  }
  if (!partners_.empty()) first_ = (first_ + 1) % partners_.size();
  return moved;
}

template <class Done>
void Mailbox::progress_until(Done done) {
  Network& network = links_.network();
  const auto awaited = [&] {
    std::vector<int> ranks;
    for (const auto& partner : partners_) {
      if (partner->open) ranks.push_back(links_.membership().job_ranks[static_cast<std::size_t>(partner->rank)]);
    }
    return ranks;
  };
  run_until_done(
      network, links_.wait_policy(), std::numeric_limits<double>::infinity(),
      [&] {
        if (done()) return Progressed::to_the_end;
        return progress() ? Progressed::something : Progressed::nothing;
      },
      awaited, [&] { return std::string("messages of '") + ranks_.name() + "'"; }, [] { return std::string(); }, [] {});
}

ReceivedMessage Mailbox::receive() {
  progress_until([&] { return !inbox_.empty(); });
  return first_of_inbox();
}

std::optional<ReceivedMessage> Mailbox::receive_unless(const std::function<bool()>& enough) {
  progress_until([&] { return !inbox_.empty() || enough(); });
  return inbox_.empty() ? std::nullopt : std::optional(first_of_inbox());
}

std::optional<ReceivedMessage> Mailbox::try_receive() {
  if (inbox_.empty()) {
    progress();
    if (inbox_.empty()) links_.network().job().check();
  }
  return inbox_.empty() ? std::nullopt : std::optional(first_of_inbox());
}

void Mailbox::take_off_links() {
  // What UCX has completed in one look is seen by the next one.
  for (int empty = 0; empty < 2;) empty = progress() ? 0 : empty + 1;
}

ReceivedMessage Mailbox::first_of_inbox() {
  ReceivedMessage message = std::move(inbox_.front());
  inbox_.pop_front();
  inbox_bytes_ -= message.head.bytes;
  return message;
}

bool Mailbox::all_sent() const {
  return std::ranges::all_of(partners_, [](const auto& partner) { return partner->outgoing.empty(); });
}

bool Mailbox::has_sent(std::uint64_t request) const { return !queued_.contains(request); }

void Mailbox::forget(const Outgoing& outgoing) {
  const auto found = queued_.find(outgoing.head.request);
  if (--found->second == 0) queued_.erase(found);
}

void Mailbox::send_all() {
  progress_until([&] { return all_sent(); });
}

void Mailbox::close(int rank) { partner(rank).open = false; }

void Mailbox::lose(int rank) {
  Partner& its = partner(rank);
  cancel(its);
  its.open = false;
  for (const auto& outgoing : its.outgoing) forget(*outgoing);
  its.outgoing.clear();
  its.transfer = {};
  its.bytes = {};
}

bool Mailbox::is_open(int rank) const { return partner(rank).open; }

}  // namespace stretto
