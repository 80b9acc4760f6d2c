#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/files/io_ring.hpp"

namespace stretto {

// A file of this process alone, for what does not fit into memory. It has no name, so that it goes with the process, however
// that ends, and so that jobs may share a directory. All of its space is taken from the disk when it is made.
//
// Reads and writes bypass the page cache (O_DIRECT) where the file system allows it: it would keep a second copy of what
// just left the memory. Each is of whole blocks: offset, length and address are multiples of `alignment`. Any thread may
// call them, also at the same time, for different parts of the file.
class ScratchFile {
 public:
  static constexpr std::int64_t alignment = 4096;
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  // Makes a file of zeros. Throws Error(io) that names the directory for one that is missing, not writable or too full.
  ScratchFile(std::string directory, std::int64_t bytes, IoEngine engine = IoEngine::any);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Takes space for so many bytes in all, if it has less. Throws as the constructor. Not while it is mapped.
  void grow(std::int64_t bytes);
  void read(std::int64_t offset, void* to, std::int64_t bytes);
  void write(std::int64_t offset, const void* from, std::int64_t bytes);
  // False: the file system, such as tmpfs, has no O_DIRECT, and the page cache keeps a copy as long as there is room.
  bool is_direct() const { return direct_ >= 0; }
  bool has_uring() const { return reads_.has_uring() && writes_.has_uring(); }

  // The file as memory, as long as the object lives, for access out of turn: not while parts of it are read or written.
  // forget() gives back the memory that accesses to a part of whole blocks have taken; what they changed stays.
  std::byte* mapped();
  void forget(std::int64_t offset, std::int64_t bytes);

 private:
  int descriptor() const { return is_direct() ? direct_ : buffered_; }

  std::string directory_;
  std::int64_t bytes_ = 0;
  int buffered_ = -1, direct_ = -1;
  std::byte* mapped_ = nullptr;
  IoRing reads_, writes_;  // apart, so that writes behind the caller don't hold up what it waits for
};

}  // namespace stretto
