#include "transport/bootstrap/frames.hpp"

#include <array>
#include <cerrno>
#include <cstring>

#include "core/fail.hpp"
#include "stretto/stream.hpp"

namespace stretto {
namespace {

struct FrameHead {
  FrameKind kind;
  std::uint32_t bytes;
};
constexpr std::uint32_t longest_frame = 1U << 28;

}  // namespace

FrameConnection::FrameConnection(Socket socket, const RankIntroduction& who)
    : socket_(std::move(socket)), who_(who), heard_at_(now_seconds()) {
  socket_.notice_dead_hosts();
}

void FrameConnection::renumber(int rank, int size) {
  who_.rank = rank;
  who_.size = size;
}

bool FrameConnection::send(FrameKind kind, const void* data, std::size_t bytes) {
  require(bytes <= longest_frame, "{} bytes are too many for one message between ranks.", bytes);
  {
    const std::lock_guard lock(writing_);
    if (!open_) return true;
    const FrameHead head{kind, static_cast<std::uint32_t>(bytes)};
    const auto append = [&](const void* from, std::size_t count) {
      const auto* begin = static_cast<const std::byte*>(from);
      outgoing_.insert(outgoing_.end(), begin, begin + count);
    };
    append(&head, sizeof head);
    append(data, bytes);
    unsent_ = true;
  }
  flush();
  return !unsent_;
}

void FrameConnection::flush() {
  const std::lock_guard lock(writing_);
  std::size_t sent = 0;
  while (open_ && sent < outgoing_.size()) {
    const ssize_t now = socket_.write_some(outgoing_.data() + sent, outgoing_.size() - sent);
    if (now < 0) sent = outgoing_.size();  // the reading thread sees the end of the connection
    if (now <= 0) break;
    sent += static_cast<std::size_t>(now);
  }
  outgoing_.erase(outgoing_.begin(), outgoing_.begin() + static_cast<std::ptrdiff_t>(sent));
  unsent_ = open_ && !outgoing_.empty();
}

void FrameConnection::end_writing() {
  const std::lock_guard lock(writing_);
  if (open_) socket_.end_writing();
}

bool FrameConnection::receive(const std::function<void(FrameKind, Bytes)>& take) {
  std::array<std::byte, 65536> piece;
  const ssize_t got = socket_.read_some(piece.data(), piece.size());
  if (got < 0) end_error_ = errno;
  if (got <= 0) return got == 0;
  heard_at_ = now_seconds();
  received_.insert(received_.end(), piece.begin(), piece.begin() + got);
  std::size_t at = 0;
  FrameHead head{};
  while (received_.size() - at >= sizeof head) {
    std::memcpy(&head, received_.data() + at, sizeof head);
    ensure(head.kind <= FrameKind::shrunk && head.bytes <= longest_frame, "R{} sent what is no message of this job.",
           who_.to_string().substr(1));
    if (received_.size() - at - sizeof head < head.bytes) break;
    const auto body = received_.begin() + static_cast<std::ptrdiff_t>(at + sizeof head);
    at += sizeof head + head.bytes;
    take(head.kind, Bytes(body, body + head.bytes));
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(at));
  return true;
}

void FrameConnection::close() {
  const std::lock_guard lock(writing_);
  open_ = false;
  unsent_ = false;
  outgoing_.clear();
  socket_.close();
}

}  // namespace stretto
