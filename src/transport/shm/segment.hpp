#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/modelled_link.hpp"
#include "transport/wait.hpp"

// The shared memory of one rank: an anonymous file (memfd) that other ranks of the host open through /proc/<pid>/fd. It has
// no name, so nothing is left behind however the rank ends. It is sparse: memory is committed when a ring is first used.
namespace stretto {

inline constexpr std::size_t page_bytes = 4096;

// A mapped part of a segment; the destructor unmaps it.
class Mapping {
 public:
  // Commits the bytes first: if the machine is out of memory, this throws, instead of a SIGBUS at the first access.
  Mapping(int file, std::size_t offset, std::size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct SegmentAddress {  // a peer opens the segment by it
  std::int64_t pid = 0;
  std::int64_t file = 0;
  std::int64_t check = 0;  // must be found in the header
};

struct SegmentHeader {
  std::int64_t check;
  alignas(128) Bell bell;
  Ports ports;
};

// This rank's own segment.
class Segment {
 public:
  Segment();
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  SegmentAddress address() const;
  Bell& bell() const;
  int file() const { return file_; }

  // Returns the offset of a range of the file, zeroed and not committed yet. release() gives memory and range back.
  std::size_t reserve(std::size_t bytes);
  void release(std::size_t offset, std::size_t bytes);

 private:
  int file_ = -1;
  std::int64_t check_ = 0;
  std::unique_ptr<Mapping> header_;
  std::mutex mutex_;
  std::size_t end_;
  std::multimap<std::size_t, std::size_t> free_;  // size -> offset
};

// The segment of any rank, opened by its address.
class PeerSegment {
 public:
  explicit PeerSegment(const SegmentAddress& address, int rank);
  ~PeerSegment();
  PeerSegment(const PeerSegment&) = delete;
  PeerSegment& operator=(const PeerSegment&) = delete;
  Bell& bell() const;
  Ports& ports() const;
  int file() const { return file_; }

 private:
  int file_ = -1;
  std::unique_ptr<Mapping> header_;
};

}  // namespace stretto
