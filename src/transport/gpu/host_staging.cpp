#include "transport/gpu/host_staging.hpp"

#include <algorithm>
#include <deque>

namespace stretto {
namespace {

constexpr std::size_t most_blocks = 3;

class HostMessage final : public StagedMessage {
 public:
  HostMessage(const GpuMessage& message, HostStaging& staging, SideCopies& copies, Link& link)
      : message_(message), staging_(staging), copies_(copies), link_(link) {}
  ~HostMessage() override;
  HostMessage(const HostMessage&) = delete;
  HostMessage& operator=(const HostMessage&) = delete;

  bool advance() override { return message_.sends ? send_some() : receive_some(); }
  bool complete() const override { return done_ == message_.bytes; }
  bool waits_for_gpu() const override;

 private:
  struct PinnedBlock {
    std::byte* memory = nullptr;
    std::size_t offset = 0, bytes = 0;  // its part of the message
    Transfer transfer = {};
    GpuEvent copied = nullptr;  // while it is being copied
  };
  PinnedBlock next_block();
  bool send_some();
  bool receive_some();
  void drop_first();

  GpuMessage message_;
  HostStaging& staging_;
  SideCopies& copies_;
  Link& link_;
  // In order. In a send, the link may hold the first, and the others are being copied or wait. In a receive, the link may
  // hold the last, and the others are being copied.
  std::deque<PinnedBlock> blocks_;
  std::size_t begun_ = 0, done_ = 0;  // bytes
};

HostMessage::~HostMessage() {
  for (PinnedBlock& block : blocks_) {
    const bool with_link = block.transfer.source != nullptr || block.transfer.destination != nullptr;
    if (block.copied != nullptr) {
      copies_.wait(block.copied);
    } else if (with_link) {
      link_.cancel(block.transfer);
    }
    staging_.give_back(block.memory);
  }
}

bool HostMessage::waits_for_gpu() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const PinnedBlock& block) { return block.copied != nullptr; });
}

HostMessage::PinnedBlock HostMessage::next_block() {
  PinnedBlock block{staging_.take_block(), begun_, std::min(HostStaging::block_bytes, message_.bytes - begun_)};
  block.transfer.bytes = block.bytes;
  begun_ += block.bytes;
  return block;
}

void HostMessage::drop_first() {
  done_ += blocks_.front().bytes;
  staging_.give_back(blocks_.front().memory);
  blocks_.pop_front();
}

bool HostMessage::send_some() {
  bool moved = false;
  while (begun_ < message_.bytes && blocks_.size() < most_blocks) {
    PinnedBlock& block = blocks_.emplace_back(next_block());
    block.copied = copies_.out(block.memory, message_.data + block.offset, block.bytes);
    moved = true;
  }
  if (blocks_.empty()) return moved;
  PinnedBlock& first = blocks_.front();
  if (first.copied != nullptr) {
    if (!copies_.is_done(first.copied)) return moved;
    first.copied = nullptr;
    first.transfer.source = first.memory;
  }
  moved |= link_.progress(first.transfer);
  if (!first.transfer.complete()) return moved;
  drop_first();
  return true;
}

bool HostMessage::receive_some() {
  bool moved = false;
  const bool arriving = !blocks_.empty() && blocks_.back().copied == nullptr;
  if (!arriving && begun_ < message_.bytes && blocks_.size() < most_blocks) {
    PinnedBlock& block = blocks_.emplace_back(next_block());
    block.transfer.destination = block.memory;
  }
  if (!blocks_.empty() && blocks_.back().copied == nullptr) {
    PinnedBlock& last = blocks_.back();
    moved |= link_.progress(last.transfer);
    if (last.transfer.complete()) {
      last.copied = copies_.in(message_.data + last.offset, last.memory, last.bytes);
      moved = true;
    }
  }
  while (!blocks_.empty() && blocks_.front().copied != nullptr && copies_.is_done(blocks_.front().copied)) {
    drop_first();
    moved = true;
  }
  return moved;
}

}  // namespace

HostStaging::~HostStaging() {
  for (std::byte* const block : blocks_) gpu_.release_pinned(block);
}

std::unique_ptr<StagedMessage> HostStaging::begin(const GpuMessage& message, SideCopies& copies) {
  return std::make_unique<HostMessage>(message, *this, copies, links_.to(message.peer, Links::gpu_lane));
}

std::byte* HostStaging::take_block() {
  if (free_blocks_.empty()) {
    std::byte* const block = gpu_.allocate_pinned(block_bytes);
    blocks_.push_back(block);
    return block;
  }
  std::byte* const block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

}  // namespace stretto
