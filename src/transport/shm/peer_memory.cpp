#include "transport/shm/peer_memory.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/fail.hpp"
#include "transport/link_broken.hpp"
#include "transport/shm/peer_file.hpp"

namespace stretto {

PeerMemory::PeerMemory(const HeapAddress& heap, int rank) : heap_(heap), rank_(rank), same_process_(heap.pid == getpid()) {
  if (same_process_) return;
  file_ = open_peer_file(heap.pid, heap.file, "symmetric heap", rank);
  std::uint64_t check = 0;
  if (pread(file_, &check, sizeof check, 0) != sizeof check || check != heap.check) {
    close(file_);
    fail(ErrorCode::internal, "File {} of process {} of rank {} is not the heap that it announced.", heap.file, heap.pid,
         rank);
  }
  check = 0;
  readable_ = read_through_kernel(heap.base, &check, sizeof check) == 0 && check == heap.check;
}

PeerMemory::~PeerMemory() {
  if (base_ != nullptr) munmap(base_, heap_.reserved);
  if (file_ >= 0) close(file_);
}

void PeerMemory::look(const BufferPlace& place, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  struct stat status {};
  ensure(fstat(file_, &status) == 0, "The symmetric heap of rank {} cannot be measured: {}.", rank_, errno_text(errno));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  ensure(place.in_heap <= size && bytes <= size - place.in_heap,
         "Rank {} announced {} bytes at {} of its symmetric heap, which has {}; do all ranks call with the same counts? "
         "STRETTO_CHECK=1 compares them.",
         rank_, bytes, place.in_heap, size);
  if (base_ == nullptr) base_ = map_heap_file(file_, heap_.reserved);
  known_.store(size, std::memory_order_release);
}

int PeerMemory::read_through_kernel(std::uint64_t address, void* to, std::size_t bytes) const {
  auto* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec local{out, bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address in another process
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = process_vm_readv(static_cast<pid_t>(heap_.pid), &local, 1, &remote, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EFAULT;
    out += got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

void PeerMemory::read(const BufferPlace& place, std::size_t offset, void* to, std::size_t bytes) {
  if (maps(place)) {
    std::memcpy(to, at(place, offset + bytes) + offset, bytes);
    return;
  }
  const int error = read_through_kernel(place.address + offset, to, bytes);
  if (error == 0) return;
  if (error == EPERM) {
    fail(ErrorCode::unavailable,
         "Cannot read {} bytes in the memory of rank {}: the kernel does not let this process read process {}; take "
         "buffers from stretto::allocate(), or set kernel.yama.ptrace_scope=0 (docker: --cap-add=SYS_PTRACE).",
         bytes, rank_, heap_.pid);
  }
  const std::string why = error == ESRCH ? "it has ended"
                          : error == EFAULT
                              ? "they were freed, or never there; the buffers of a call must stay until its Work "
                                "is done"
                              : errno_text(error);
  throw LinkBroken(rank_, error == ESRCH ? ErrorCode::peer_lost : ErrorCode::unavailable,
                   fmt::format("Cannot read {} bytes at {:#x} in the memory of rank {} (process {}): {}.", bytes,
                               place.address + offset, rank_, heap_.pid, why));
}

}  // namespace stretto
