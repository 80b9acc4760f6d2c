#pragma once
#include <memory>

#include "transport/link.hpp"
#include "transport/shm/copy_to_reader.hpp"
#include "transport/shm/one_word.hpp"
#include "transport/shm/segment.hpp"

namespace stretto {

// One direction: a ring of bytes in the receiver's segment with one writer, one reader and no lock. Sender and receiver work
// on different pieces of a message at the same time, and a receiver that reduces reads straight from the ring: each byte
// costs one copy in and one reduction out.
struct ByteRing {
  // Positions of the writer and of the reader, in bytes since the start, each on a cache line of its own.
  struct Header {
    alignas(128) std::atomic<std::uint64_t> written;
    alignas(128) std::atomic<std::uint64_t> read;
  };

  static std::size_t footprint(int members);  // bytes of header and data, which depend on the number of ranks
  static std::size_t largest_footprint();     // whatever the members
  // memory: maps `file` from `offset` on, footprint(members) bytes of it.
  ByteRing(const Mapping& memory, int members, int file, std::size_t offset);

  Header* header;
  std::byte* data;
  std::size_t capacity;
  OneWord written, read;  // the header's
};

class ShmLink : public Link {
 public:
  // members: of the communicator. incoming and outgoing: offsets of this link's rings in this rank's segment and in the
  // peer's.
  ShmLink(int members, const Segment& own, std::size_t incoming, const std::shared_ptr<PeerSegment>& peer,
          std::size_t outgoing);
  bool progress(Transfer& transfer) override;
  void cancel(Transfer&) override {}  // nothing outside the transfer knows it

 private:
  bool send_some(Transfer& transfer);
  bool receive_some(Transfer& transfer);

  std::shared_ptr<PeerSegment> peer_;
  std::unique_ptr<Mapping> incoming_memory_;
  std::unique_ptr<Mapping> outgoing_memory_;
  ByteRing incoming_;
  ByteRing outgoing_;
  CopyToReader copy_to_reader_;
};

}  // namespace stretto
