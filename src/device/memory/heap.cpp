#include "device/memory/heap.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/fail.hpp"
#include "core/setting_values.hpp"
#include "device/memory/shared_file.hpp"
#include "stretto/memory.hpp"

namespace stretto {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t most_reserved = std::size_t{1} << 46;  // half of the address space of a process on x86-64
constexpr std::size_t commit_step = 65536;                   // small blocks share pages, and system calls

std::size_t aligned(std::size_t offset, std::size_t alignment) { return (offset + alignment - 1) / alignment * alignment; }

// Linux 6.1 and later collapse pages on request even where huge pages of shared memory are switched off, which is the usual
// case. Afterwards neither this process nor a peer pays for a page fault per 4 KiB. If the call fails, small pages stay.
void use_huge_pages([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_COLLAPSE
  madvise(begin, bytes, MADV_COLLAPSE);
#endif
}

}  // namespace

std::byte* map_heap_file(int file, std::uint64_t reserved) {
  const auto try_mmap = [&](void* at, std::size_t bytes, int protection, int flags, int of) {
    void* const result = mmap(at, bytes, protection, flags, of, 0);
    if (result == MAP_FAILED) {
      const int error = errno;
      fail(ErrorCode::unavailable,
           "Cannot reserve {} bytes of addresses for a symmetric heap: {}; lower STRETTO_HEAP_BYTES={} or allow more "
           "(ulimit -v).",
           bytes, errno_text(error), setting("STRETTO_HEAP_BYTES"));
    }
    return static_cast<std::byte*>(result);
  };
  std::byte* const room =
      try_mmap(nullptr, reserved + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  const std::size_t before =
      aligned(reinterpret_cast<std::uintptr_t>(room), huge_page) - reinterpret_cast<std::uintptr_t>(room);
  std::byte* const base = room + before;
  if (before != 0) munmap(room, before);
  munmap(base + reserved, huge_page - before);
  try {
    try_mmap(base, reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file);
  } catch (...) {
    munmap(base, reserved);
    throw;
  }
  madvise(base, reserved, MADV_DONTDUMP);
  madvise(base, reserved, MADV_HUGEPAGE);
  return base;
}

Heap& Heap::make_mine() {
  const std::lock_guard lock(making_);
  if (Heap* const heap = mine_.load()) return *heap;
  static const int handled = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  ensure(handled == 0, "pthread_atfork: {}.", errno_text(handled));
  mine_.store(new Heap, std::memory_order_release);
  return *mine_;
}

// A fork()ed child finds all locks free. Blocks of the parent's heap that the child gives back go to the free lists of the
// child's copy of that pool, from which nobody allocates any more.
void Heap::before_fork() {
  making_.lock();
  if (Heap* const heap = mine_) heap->mutex().lock();
}
void Heap::after_fork_in_parent() {
  if (Heap* const heap = mine_) heap->mutex().unlock();
  making_.unlock();
}
void Heap::after_fork_in_child() {
  after_fork_in_parent();
  mine_ = nullptr;
}

Heap::Heap() {
  const double wanted = number_setting("STRETTO_HEAP_BYTES");
  require(wanted >= huge_page, "STRETTO_HEAP_BYTES={} is too little for a heap; give at least {}.",
          setting("STRETTO_HEAP_BYTES"), huge_page);
  require(wanted <= most_reserved, "STRETTO_HEAP_BYTES={} exceeds the address space of a process; give at most {}.",
          setting("STRETTO_HEAP_BYTES"), most_reserved);
  reserved_ = aligned(static_cast<std::size_t>(wanted), huge_page);
  file_ = open_nameless_file();
  try {
    commit_pages(file_, 0, page, "allocate less");
    base_ = reinterpret_cast<std::uintptr_t>(map_heap_file(file_, reserved_));
  } catch (...) {
    close(file_);
    throw;
  }
  end_ = committed_ = page;
  if (getrandom(&check_, sizeof check_, 0) != sizeof check_) check_ = static_cast<std::uint64_t>(getpid());
  std::memcpy(reinterpret_cast<void*>(base_), &check_, sizeof check_);
}

HeapAddress Heap::address() const { return {getpid(), file_, reserved_, base_, check_}; }

std::shared_ptr<std::byte> Heap::allocate(std::size_t bytes) {
  if (bytes > reserved_) {
    fail(ErrorCode::unavailable, "{} bytes do not fit into a symmetric heap of {}; raise STRETTO_HEAP_BYTES.", bytes,
         reserved_);
  }
  return Pool::allocate(bytes);
}

std::byte* Heap::fresh(std::size_t bytes) {
#if defined(STRETTO_SANITIZE)
  const std::size_t smallest_alignment = page;  // discard() unmaps whole pages
#else
  const std::size_t smallest_alignment = block_alignment;
#endif
  const std::size_t begin = aligned(end_, bytes >= huge_page ? huge_page : smallest_alignment);
  const std::size_t end = begin + bytes;
  if (end > reserved_) {
    fail(ErrorCode::unavailable,
         "{} more bytes do not fit into a symmetric heap of which {} of {} are used; raise "
         "STRETTO_HEAP_BYTES.",
         bytes, end_, reserved_);
  }
  auto* const block = reinterpret_cast<std::byte*>(base_ + begin);
  if (end > committed_) {
    const std::size_t from = std::max(begin, committed_);
    const std::size_t to = aligned(end, commit_step);
    commit_pages(file_, from, to - from, "allocate less");
    committed_ = to;
    if (bytes >= huge_page) use_huge_pages(block, bytes);
  }
  end_ = end;
  return block;
}

void Heap::discard(std::byte* block, std::size_t bytes) {
  if (this != mine_) return;  // inherited by fork(): the parent still uses the file
  bytes = aligned(bytes, page);
  mprotect(block, bytes, PROT_NONE);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(reinterpret_cast<std::uintptr_t>(block) - base_), static_cast<off_t>(bytes));
}

std::shared_ptr<std::byte> allocate(std::size_t bytes) { return Heap::mine().allocate(bytes); }

}  // namespace stretto
