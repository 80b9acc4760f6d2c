#include "transport/modelled_link.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "transport/wait.hpp"

namespace stretto {
namespace {

// Small enough that messages share a port fairly, large enough that a rank need not look too often.
constexpr std::size_t piece_bytes = std::size_t{32} << 10;
// Bytes that may have arrived without being taken: as many as sockets would hold for a busy receiver.
constexpr std::size_t window_bytes = std::size_t{8} << 20;
// Bounds of the time between looks at a message on its way, in nanoseconds; the time is a third of the message's duration.
// Every look wakes two threads in the middle of computation, this one and the receiver's, and only the last byte completes
// the message.
constexpr std::int64_t shortest_rest = 50'000;
constexpr std::int64_t longest_rest = 4'000'000;

}  // namespace

std::int64_t Port::occupy(std::int64_t from, std::int64_t nanoseconds) {
  std::int64_t free_from = free_from_.load(std::memory_order_relaxed);
  while (true) {
    const std::int64_t begin = std::max(from, free_from);
    if (free_from_.compare_exchange_weak(free_from, begin + nanoseconds, std::memory_order_relaxed)) return begin;
  }
}

ModelledLink::ModelledLink(std::unique_ptr<Link> link, const LinkSpeed& speed, std::shared_ptr<Port> out,
                           std::shared_ptr<Port> in)
    : link_(std::move(link)), speed_(speed), out_(std::move(out)), in_(std::move(in)) {}

bool ModelledLink::progress(Transfer& transfer) {
  if (transfer.source == nullptr) return link_->progress(transfer);
  const std::int64_t now = steady_nanoseconds();
  if (transfer.started == 0) {
    next_from_ = now;
    arrived_ = 0;
  }
  occupy_ports(transfer, now);
  note_arrivals(now);
  const bool moved = pass_on(transfer);
  if (!transfer.complete()) ask_for_a_look(transfer, now);
  return moved;
}

// Occupies ports for every piece that may have begun to leave by now.
void ModelledLink::occupy_ports(Transfer& transfer, std::int64_t now) {
  while (true) {
    if (leaving_) {
      // No earlier: another sender may reach the receiver's port first.
      if (leaving_->begin > now) return;
      const std::int64_t begin = in_->occupy(leaving_->begin, leaving_->duration);
      leaving_->arrival = begin + leaving_->duration + latency();
      next_from_ = leaving_->begin + leaving_->duration;
      on_their_way_.push_back(*leaving_);
      leaving_.reset();
    }
    if (next_from_ > now || transfer.started == transfer.bytes) return;
    note_arrivals(now);
    if (transfer.held || arrived_ - transfer.moved >= window_bytes) {
      next_from_ = now;  // nothing may leave meanwhile, and this time is lost
      return;
    }
    leaving_ = next_piece(transfer);
    leaving_->begin = out_->occupy(next_from_, leaving_->duration);
    transfer.started = leaving_->end;
  }
}

// Durations are differences of whole times, so that rounding does not add up.
ModelledLink::ModelledPiece ModelledLink::next_piece(const Transfer& transfer) const {
  const std::size_t end = std::min(transfer.bytes, transfer.started + piece_bytes);
  return {end, 0, nanoseconds(end) - nanoseconds(transfer.started)};
}

std::int64_t ModelledLink::nanoseconds(std::size_t bytes) const {
  return std::llround(std::ceil(static_cast<double>(bytes) / speed_.bytes_per_second * 1e9));
}

void ModelledLink::note_arrivals(std::int64_t now) {
  while (!on_their_way_.empty() && on_their_way_.front().arrival <= now) {
    arrived_ = on_their_way_.front().end;
    on_their_way_.pop_front();
  }
}

bool ModelledLink::pass_on(Transfer& transfer) {
  Transfer part = transfer;
  part.bytes = arrived_;
  part.held = false;  // arrived bytes go on
  bool moved = false;
  while (!part.complete() && link_->progress(part)) moved = true;
  transfer.moved = part.moved;
  return moved;
}

// No thread rings when modelled bytes arrive. Only the look at the last byte must be punctual. A look may find several
// earlier pieces at once, since the ports' time continues without this rank.
void ModelledLink::ask_for_a_look(const Transfer& transfer, std::int64_t now) const {
  const bool all_on_their_way = !leaving_ && transfer.started == transfer.bytes;
  if (all_on_their_way && on_their_way_.empty()) return;  // the receiver makes room, and rings
  if (transfer.held && !all_on_their_way) {               // looks only for pieces that were handed over
    if (leaving_) look_again_at(leaving_->begin);
    if (!on_their_way_.empty()) look_again_at(std::max(now + shortest_rest, on_their_way_.front().arrival));
    return;
  }
  const std::int64_t next = leaving_ ? leaving_->begin : next_from_;
  const std::int64_t left = nanoseconds(transfer.bytes - transfer.started) + (leaving_ ? leaving_->duration : 0);
  look_again_at(all_on_their_way ? on_their_way_.back().arrival : next + left + latency());
  const std::int64_t often = std::clamp(nanoseconds(transfer.bytes) / 3, shortest_rest, longest_rest);
  look_again_at(std::max(now, on_their_way_.empty() ? next : on_their_way_.front().arrival) + often);
}

std::int64_t ModelledLink::latency() const { return std::llround(std::ceil(speed_.latency * 1e9)); }

void ModelledLink::cancel(Transfer& transfer) {
  leaving_.reset();
  on_their_way_.clear();
  link_->cancel(transfer);
}

}  // namespace stretto
