#include "transport/staged_message.hpp"

#include <algorithm>

namespace stretto {
namespace {

constexpr std::size_t most_blocks = 3;

}  // namespace

StagedMessage::~StagedMessage() {
  for (Block& block : blocks_) {
    const bool with_link = block.transfer.source != nullptr || block.transfer.destination != nullptr;
    if (block.copied != nullptr) {
      staging_.wait(block.copied);
    } else if (with_link) {
      link_.cancel(block.transfer);
    }
    staging_.give_back(block.memory);
  }
}

bool StagedMessage::waits_for_gpu() const {
  return std::any_of(blocks_.begin(), blocks_.end(), [](const Block& block) { return block.copied != nullptr; });
}

StagedMessage::Block StagedMessage::next_block() {
  Block block{staging_.take_block(), begun_, std::min(Staging::block_bytes, message_.bytes - begun_)};
  block.transfer.bytes = block.bytes;
  begun_ += block.bytes;
  return block;
}

void StagedMessage::drop_first() {
  done_ += blocks_.front().bytes;
  staging_.give_back(blocks_.front().memory);
  blocks_.pop_front();
}

bool StagedMessage::send_some() {
  bool moved = false;
  while (begun_ < message_.bytes && blocks_.size() < most_blocks) {
    Block& block = blocks_.emplace_back(next_block());
    block.copied = staging_.copy_out(block.memory, message_.data + block.offset, block.bytes);
    moved = true;
  }
  if (blocks_.empty()) return moved;
  Block& first = blocks_.front();
  if (first.copied != nullptr) {
    if (!staging_.is_done(first.copied)) return moved;
    first.copied = nullptr;
    first.transfer.source = first.memory;
  }
  moved |= link_.progress(first.transfer);
  if (!first.transfer.complete()) return moved;
  drop_first();
  return true;
}

bool StagedMessage::receive_some() {
  bool moved = false;
  const bool arriving = !blocks_.empty() && blocks_.back().copied == nullptr;
  if (!arriving && begun_ < message_.bytes && blocks_.size() < most_blocks) {
    Block& block = blocks_.emplace_back(next_block());
    block.transfer.destination = block.memory;
  }
  if (!blocks_.empty() && blocks_.back().copied == nullptr) {
    Block& last = blocks_.back();
    moved |= link_.progress(last.transfer);
    if (last.transfer.complete()) {
      last.copied = staging_.copy_in(message_.data + last.offset, last.memory, last.bytes);
      moved = true;
    }
  }
  while (!blocks_.empty() && blocks_.front().copied != nullptr && staging_.is_done(blocks_.front().copied)) {
    drop_first();
    moved = true;
  }
  return moved;
}

}  // namespace stretto
