#include "core/files/io_ring.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#ifdef STRETTO_HAVE_URING
#include <liburing.h>
#endif

namespace stretto {
namespace {

struct Range {
  bool writes;
  int file;
  std::int64_t offset;
  std::byte* memory;
  std::int64_t bytes;
};

int move_by_calls(Range left) {
  while (left.bytes > 0) {
    const auto bytes = static_cast<std::size_t>(std::min(left.bytes, IoRing::piece_bytes));
    const ssize_t moved =
        left.writes ? pwrite(left.file, left.memory, bytes, left.offset) : pread(left.file, left.memory, bytes, left.offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : ENODATA;
    left.offset += moved, left.memory += moved, left.bytes -= moved;
  }
  return 0;
}

}  // namespace

#ifdef STRETTO_HAVE_URING

struct IoRing::Uring {
  io_uring ring;

  void submit(Range& piece) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring);  // never null: there are as many as pieces
    const auto bytes = static_cast<unsigned>(piece.bytes);
    if (piece.writes) {
      io_uring_prep_write(entry, piece.file, piece.memory, bytes, static_cast<std::uint64_t>(piece.offset));
    } else {
      io_uring_prep_read(entry, piece.file, piece.memory, bytes, static_cast<std::uint64_t>(piece.offset));
    }
    io_uring_sqe_set_data(entry, &piece);
  }

  // After an error nothing is submitted any more, but what is under way must end: the kernel still uses its memory.
  int move(Range left) {
    std::array<Range, depth> pieces;
    unsigned begun = 0, under_way = 0;
    int error = 0;
    const auto begin_next = [&](Range& piece) {
      piece = left;
      piece.bytes = std::min(left.bytes, piece_bytes);
      left.offset += piece.bytes, left.memory += piece.bytes, left.bytes -= piece.bytes;
      submit(piece);
      ++under_way;
    };
    while (left.bytes > 0 && begun < depth) begin_next(pieces[begun++]);
    while (under_way > 0) {
      io_uring_submit_and_wait(&ring, 1);
      io_uring_cqe* done = nullptr;
      while (io_uring_peek_cqe(&ring, &done) == 0) {
        Range& piece = *static_cast<Range*>(io_uring_cqe_get_data(done));
        const int moved = done->res;
        io_uring_cqe_seen(&ring, done);
        --under_way;
        if (moved > 0) {
          piece.offset += moved, piece.memory += moved, piece.bytes -= moved;
        } else if (moved != -EINTR && moved != -EAGAIN && error == 0) {
          error = moved < 0 ? -moved : ENODATA;
        }
        if (error != 0) continue;
        if (piece.bytes > 0) {
          submit(piece);
          ++under_way;
        } else if (left.bytes > 0) {
          begin_next(piece);
        }
      }
    }
    return error;
  }
};

IoRing::IoRing(IoEngine engine) {
  if (engine == IoEngine::calls) return;
  auto uring = std::make_unique<Uring>();
  if (io_uring_queue_init(depth, &uring->ring, 0) == 0) uring_ = std::move(uring);
}

IoRing::~IoRing() {
  if (uring_) io_uring_queue_exit(&uring_->ring);
}

int IoRing::read(int file, std::int64_t offset, void* to, std::int64_t bytes) {
  const Range range{false, file, offset, static_cast<std::byte*>(to), bytes};
  const std::lock_guard lock(mutex_);
  return uring_ ? uring_->move(range) : move_by_calls(range);
}

int IoRing::write(int file, std::int64_t offset, const void* from, std::int64_t bytes) {
  const Range range{true, file, offset, static_cast<std::byte*>(const_cast<void*>(from)), bytes};
  const std::lock_guard lock(mutex_);
  return uring_ ? uring_->move(range) : move_by_calls(range);
}

#else

struct IoRing::Uring {};
IoRing::IoRing(IoEngine) {}
IoRing::~IoRing() = default;
int IoRing::read(int file, std::int64_t offset, void* to, std::int64_t bytes) {
  return move_by_calls({false, file, offset, static_cast<std::byte*>(to), bytes});
}
int IoRing::write(int file, std::int64_t offset, const void* from, std::int64_t bytes) {
  return move_by_calls({true, file, offset, static_cast<std::byte*>(const_cast<void*>(from)), bytes});
}

#endif

}  // namespace stretto
