#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/modelled_link.hpp"
#include "transport/shm/departures.hpp"
#include "transport/shm/mapping.hpp"
#include "transport/wait.hpp"

// The shared memory of one rank: an anonymous file (memfd) that other ranks of the host open through /proc/<pid>/fd. It has
// no name, so nothing is left behind however the rank ends. It is sparse: memory is committed when a ring is first used.
namespace stretto {

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
