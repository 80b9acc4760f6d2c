#include "transport/shm/shm_link.hpp"

#include <algorithm>
#include <cstring>

#include "core/setting_values.hpp"

namespace stretto {
namespace {

// Positions are multiples of this, so that no element of any type straddles the ring's end.
constexpr std::size_t grain = 8;
// The largest piece that is published at once: small enough to stay in the cache until the other rank has read it.
constexpr std::size_t piece = std::size_t{64} << 10;

std::size_t round_up(std::size_t bytes) { return (bytes + grain - 1) / grain * grain; }

// A line that the other core has read, and still has in its cache, costs more to write again than one that has left both
// cores' own caches for the one that they share. So a ring of few ranks holds more than a core's own cache. Those of many
// would together no longer fit into the shared one.
constexpr std::size_t bytes_of_all_members = std::size_t{2} << 20;
constexpr std::size_t least_bytes = std::size_t{256} << 10, most_bytes = std::size_t{1} << 20;

std::size_t ring_capacity(int members) {
  auto wanted = static_cast<std::size_t>(number_setting("STRETTO_RING_BYTES"));
  if (wanted == 0) wanted = std::clamp(bytes_of_all_members / static_cast<std::size_t>(members), least_bytes, most_bytes);
  return std::max<std::size_t>(4096, (wanted + 4095) / 4096 * 4096);
}

}  // namespace

ByteRing::ByteRing(const Mapping& memory, int members, int file, std::size_t offset)
    : header(reinterpret_cast<Header*>(memory.data())),
      data(memory.data() + sizeof(Header)),
      capacity(ring_capacity(members)),
      written(file, offset + offsetof(Header, written)),
      read(file, offset + offsetof(Header, read)) {}

std::size_t ByteRing::largest_footprint() { return footprint(1); }

std::size_t ByteRing::footprint(int members) { return (sizeof(Header) + ring_capacity(members) + 4095) / 4096 * 4096; }

ShmLink::ShmLink(int members, const Segment& own, std::size_t incoming, const std::shared_ptr<PeerSegment>& peer,
                 std::size_t outgoing)
    : peer_(peer),
      incoming_memory_(std::make_unique<Mapping>(own.file(), incoming, ByteRing::footprint(members))),
      outgoing_memory_(std::make_unique<Mapping>(peer->file(), outgoing, ByteRing::footprint(members))),
      incoming_(*incoming_memory_, members, own.file(), incoming),
      outgoing_(*outgoing_memory_, members, peer->file(), outgoing) {}

bool ShmLink::progress(Transfer& transfer) {
  return transfer.source != nullptr ? send_some(transfer) : receive_some(transfer);
}

bool ShmLink::send_some(Transfer& transfer) {
  if (transfer.held) return false;
  const std::uint64_t written = outgoing_.header->written.load(std::memory_order_relaxed);
  const std::uint64_t read = outgoing_.header->read.load(std::memory_order_acquire);
  outgoing_.read.seen();
  const std::size_t room = outgoing_.capacity - static_cast<std::size_t>(written - read);
  const std::size_t at = written % outgoing_.capacity;
  const std::size_t bytes = std::min({transfer.bytes - transfer.moved, room, outgoing_.capacity - at, piece});
  if (bytes == 0) return false;
  copy_to_reader_(outgoing_.data + at, transfer.source + transfer.moved, bytes);
  transfer.moved += bytes;
  outgoing_.written.published();
  outgoing_.header->written.store(written + round_up(bytes), std::memory_order_release);
  peer_->bell().ring();
  return true;
}

bool ShmLink::receive_some(Transfer& transfer) {
  const std::uint64_t read = incoming_.header->read.load(std::memory_order_relaxed);
  const std::uint64_t written = incoming_.header->written.load(std::memory_order_acquire);
  incoming_.written.seen();
  const std::size_t at = read % incoming_.capacity;
  const std::size_t bytes =
      std::min({transfer.bytes - transfer.moved, static_cast<std::size_t>(written - read), incoming_.capacity - at, piece});
  if (bytes == 0) return false;
  const std::byte* const arrived = incoming_.data + at;
  if (transfer.operand == nullptr) {
    std::memcpy(transfer.destination + transfer.moved, arrived, bytes);
  } else {
    reduce_arrived(transfer, arrived, transfer.moved, bytes);
  }
  transfer.moved += bytes;
  incoming_.read.published();
  incoming_.header->read.store(read + round_up(bytes), std::memory_order_release);
  peer_->bell().ring();
  return true;
}

}  // namespace stretto
