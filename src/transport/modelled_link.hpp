#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "transport/link.hpp"
#include "transport/link_setting.hpp"

// Repeatable slow networks on one machine: links on which messages take the time that STRETTO_LINKS says.
namespace stretto {

// One direction of a network card, as the time from which it is free. It lies in shared memory, and every sender through the
// port moves that time on. There is no lock, and idle time gives no credit.
class Port {
 public:
  // Occupies the port for this long, beginning at `from` or, if it is not free then, as soon as it is. Returns the time at
  // which that begins.
  std::int64_t occupy(std::int64_t from, std::int64_t nanoseconds);

 private:
  alignas(128) std::atomic<std::int64_t> free_from_;  // nanoseconds of the steady clock; 0: it was never used
};

// In the segment of every rank: its own ports, and those of its node if it is the node's first rank.
struct Ports {
  struct Pair {
    Port out, in;
  };
  Pair rank, node;
};

// Holds back the data that is sent over another link until it would have arrived. A piece of a message occupies the port of
// its sender and then, from the time at which it begins to leave, the port of its receiver; it is passed on one latency
// after that. Bytes never arrive early. They arrive late by the time until this rank looks next, but such delays do not add
// up: the ports' times determine when pieces follow each other, whenever the rank looks. A send is complete when its last
// byte has arrived, so that the next message begins then. Receives are those of the other link.
class ModelledLink : public Link {
 public:
  ModelledLink(std::unique_ptr<Link> link, const LinkSpeed& speed, std::shared_ptr<Port> out, std::shared_ptr<Port> in);
  bool progress(Transfer& transfer) override;
  void cancel(Transfer& transfer) override;

 private:
  struct ModelledPiece {
    std::size_t end;  // offset in the message
    std::int64_t begin, duration;
    std::int64_t arrival = 0;  // known when it has begun to leave
  };
  void occupy_ports(Transfer& transfer, std::int64_t now);
  ModelledPiece next_piece(const Transfer& transfer) const;
  std::int64_t nanoseconds(std::size_t bytes) const;  // time for which they occupy a port
  std::int64_t latency() const;
  void note_arrivals(std::int64_t now);
  bool pass_on(Transfer& transfer);
  void ask_for_a_look(const Transfer& transfer, std::int64_t now) const;

  std::unique_ptr<Link> link_;
  LinkSpeed speed_;
  std::shared_ptr<Port> out_, in_;
  // For the message that is being sent:
  std::optional<ModelledPiece> leaving_;    // has a time at this rank's port
  std::deque<ModelledPiece> on_their_way_;  // also have a time at the receiver's port
  std::int64_t next_from_ = 0;              // when the next piece may leave
  std::size_t arrived_ = 0;                 // bytes, in the model
};

}  // namespace stretto
