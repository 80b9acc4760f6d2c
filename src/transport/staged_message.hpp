#pragma once
#include <deque>

#include "transport/gpu_links.hpp"
#include "transport/link.hpp"
#include "transport/staging.hpp"

namespace stretto {

// One message between a GPU's memory and a peer, on its way through the host's memory in blocks: while one is with the link,
// others are being copied. Both ends cut it alike.
class StagedMessage {
 public:
  StagedMessage(const GpuMessage& message, Staging& staging, Link& link)
      : message_(message), staging_(staging), link_(link) {}
  // What is unfinished is given up, and the link with it.
  ~StagedMessage();
  StagedMessage(const StagedMessage&) = delete;
  StagedMessage& operator=(const StagedMessage&) = delete;

  // Moves what can be moved without waiting; true if that was anything.
  bool advance() { return message_.sends ? send_some() : receive_some(); }
  bool complete() const { return done_ == message_.bytes; }
  bool waits_for_gpu() const;

 private:
  struct Block {
    std::byte* memory = nullptr;
    std::size_t offset = 0, bytes = 0;  // of it in the message
    Transfer transfer = {};
    GpuEvent copied = nullptr;  // while it is being copied
  };
  Block next_block();
  bool send_some();
  bool receive_some();
  void drop_first();

  GpuMessage message_;
  Staging& staging_;
  Link& link_;
  // In order. Of a send: the first may be with the link, others are being copied or wait. Of a receive: the last may be with
  // the link, others are being copied.
  std::deque<Block> blocks_;
  std::size_t begun_ = 0, done_ = 0;  // bytes
};

}  // namespace stretto
