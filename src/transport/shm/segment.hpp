#pragma once
#include <atomic>
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

// Commits the pages of a range: if the machine is out of memory, this throws, instead of a SIGBUS at the first access.
void commit_memory(int file, std::size_t offset, std::size_t bytes);

// A mapped part of a segment; the destructor unmaps it.
class Mapping {
 public:
  // Commits the bytes first.
  Mapping(int file, std::size_t offset, std::size_t bytes) : Mapping(file, offset, bytes, bytes) {}
  // Commits the first ones only. The others may be accessed once any process has committed them.
  Mapping(int file, std::size_t offset, std::size_t bytes, std::size_t committed);
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

// The part of a rank's segment that serves one communicator.
struct Area {
  std::size_t offset = 0;  // of the range in the file
  // Of a count in the file: the members that have left the communicator, and touch the range no more.
  std::size_t departures = 0;
};

// Counts in the file of a segment, in which all ranks of the host add. Each page of them is mapped once, at its first use.
class Departures {
 public:
  explicit Departures(int file) : file_(file) {}
  std::atomic<std::uint32_t>& at(std::size_t offset);

 private:
  int file_;
  std::mutex mutex_;
  std::map<std::size_t, Mapping> pages_;  // by offset
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

  // Returns a range of the file, zeroed and not committed yet, and a count of 0. release() gives memory, range and count
  // back; the count must be 0 again.
  Area reserve(std::size_t bytes);
  void release(const Area& area, std::size_t bytes);
  Departures& departures() { return departures_; }

 private:
  int file_ = -1;
  std::int64_t check_ = 0;
  std::unique_ptr<Mapping> header_;
  Departures departures_;
  std::mutex mutex_;
  std::size_t end_;
  std::multimap<std::size_t, std::size_t> free_;  // size -> offset
  std::vector<std::size_t> free_counts_;          // offsets
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
  Departures& departures() { return departures_; }
  int file() const { return file_; }

 private:
  int file_ = -1;
  std::unique_ptr<Mapping> header_;
  Departures departures_;
};

}  // namespace stretto
