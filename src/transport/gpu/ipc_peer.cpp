#include "transport/gpu/ipc_peer.hpp"

#include "core/fail.hpp"

namespace stretto {

IpcPeer::IpcPeer(Link& link, std::byte* own_blocks, const std::byte* peers_blocks, const IpcBlocks& blocks)
    : link_(link), own_(own_blocks), peers_(peers_blocks), blocks_(blocks) {
  listen();
}

IpcPeer::~IpcPeer() {
  if (!to_tell_.empty()) link_.cancel(telling_);
  link_.cancel(hearing_);
}

void IpcPeer::listen() {
  hearing_ = {};
  hearing_.destination = reinterpret_cast<std::byte*>(&heard_);
  hearing_.bytes = sizeof heard_;
}

bool IpcPeer::progress() {
  bool moved = false;
  while (!to_tell_.empty()) {
    moved |= link_.progress(telling_);
    if (!telling_.complete()) break;
    to_tell_.pop_front();
    telling_ = {};
    if (to_tell_.empty()) break;
    telling_.source = reinterpret_cast<const std::byte*>(&to_tell_.front());
    telling_.bytes = sizeof(Note);
  }
  while (true) {
    moved |= link_.progress(hearing_);
    if (!hearing_.complete()) return moved;
    hear(heard_);
    listen();
  }
}

void IpcPeer::tell(const Note& note) {
  to_tell_.push_back(note);
  if (to_tell_.size() > 1) return;
  telling_.source = reinterpret_cast<const std::byte*>(&to_tell_.front());
  telling_.bytes = sizeof note;
}

void IpcPeer::hear(const Note& note) {
  switch (note.meaning) {
    case Note::full: full_.push_back(note.bytes); return;
    case Note::empty: ++emptied_; return;
  }
  fail(ErrorCode::internal, "A rank got a note about blocks of its GPU's memory that means {}.", note.meaning);
}

std::byte* IpcPeer::take_own() {
  if (taken_ - emptied_ == blocks_.number) return nullptr;
  return own_ + (taken_++ % blocks_.number) * blocks_.bytes;
}

void IpcPeer::say_full(std::size_t bytes) { tell({Note::full, static_cast<std::uint32_t>(bytes)}); }

IpcPeer::Full IpcPeer::take_full() {
  if (full_.empty()) return {};
  const Full block{peers_ + (copied_++ % blocks_.number) * blocks_.bytes, full_.front()};
  full_.pop_front();
  return block;
}

}  // namespace stretto
