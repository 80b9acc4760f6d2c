#pragma once
#include <cstddef>

namespace stretto {

inline constexpr std::size_t page_bytes = 4096;
constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

// Commits the pages of a range of a segment's file, which grows to hold them: if the machine is out of memory, this throws,
// instead of a SIGBUS at the first access.
void commit_memory(int file, std::size_t offset, std::size_t bytes);

// A mapped part of a segment; the destructor unmaps it.
class Mapping {
 public:
  // Commits the bytes first, except those before `first_committed`: a process must commit those before it writes there, and
  // until then they read as zeros.
  Mapping(int file, std::size_t offset, std::size_t bytes, std::size_t first_committed = 0);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace stretto
