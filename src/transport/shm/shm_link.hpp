#pragma once
#include <memory>

#include "transport/link.hpp"
#include "transport/shm/one_word.hpp"
#include "transport/shm/segment.hpp"

namespace stretto {

// One direction: a ring of bytes in the receiver's segment, one writer, one reader, no lock. Sender and receiver work on
// different pieces of a message at the same time, and a receiver that reduces reads straight out of the ring: per byte one
// copy in, one reduction out.
struct Ring {
  // Positions count bytes since the start, each on a cache line of its own: the writer's and the reader's.
  struct Header {
    alignas(128) std::atomic<std::uint64_t> written;
    alignas(128) std::atomic<std::uint64_t> read;
  };

  static std::size_t footprint();  // bytes of header and data together
  // The memory is the file's from that offset on.
  Ring(const Mapping& memory, int file, std::size_t offset);

  Header* header;
  std::byte* data;
  std::size_t capacity;
  OneWord written, read;  // the header's
};

class ShmLink : public Link {
 public:
  // Where this link's incoming ring lies in our own segment, and its outgoing ring in the peer's.
  ShmLink(const Segment& own, std::size_t incoming, const std::shared_ptr<PeerSegment>& peer, std::size_t outgoing);
  bool progress(Transfer& transfer) override;
  void cancel(Transfer&) override {}  // nothing of it is known outside

 private:
  bool send_some(Transfer& transfer);
  bool receive_some(Transfer& transfer);

  std::shared_ptr<PeerSegment> peer_;
  std::unique_ptr<Mapping> incoming_memory_;
  std::unique_ptr<Mapping> outgoing_memory_;
  Ring incoming_;
  Ring outgoing_;
};

}  // namespace stretto
