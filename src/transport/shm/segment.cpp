#include "transport/shm/segment.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "core/fail.hpp"
#include "device/memory/shared_file.hpp"
#include "transport/shm/peer_file.hpp"

namespace stretto {

Segment::Segment() : file_(open_nameless_file()), departures_(file_), end_(whole_pages(sizeof(SegmentHeader))) {
  if (getrandom(&check_, sizeof check_, 0) != sizeof check_) check_ = getpid();
  try {
    header_ = std::make_unique<Mapping>(file_, 0, sizeof(SegmentHeader));
  } catch (...) {
    close(file_);
    throw;
  }
  bell().prepare();
  reinterpret_cast<SegmentHeader*>(header_->data())->check = check_;
}

Segment::~Segment() { close(file_); }

SegmentAddress Segment::address() const { return {getpid(), file_, check_}; }

Bell& Segment::bell() const { return reinterpret_cast<SegmentHeader*>(header_->data())->bell; }

Area Segment::reserve(std::size_t bytes) {
  bytes = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  Area area;
  if (const auto fit = free_.find(bytes); fit != free_.end()) {
    area.offset = fit->second;
    free_.erase(fit);
  } else {
    area.offset = std::exchange(end_, end_ + bytes);
  }
  if (free_counts_.empty()) {
    const std::size_t page = std::exchange(end_, end_ + page_bytes);
    for (std::size_t at = page_bytes; at > 0; at -= sizeof(std::uint32_t))
      free_counts_.push_back(page + at - sizeof(std::uint32_t));
  }
  area.departures = free_counts_.back();
  free_counts_.pop_back();
  return area;
}

void Segment::release(const Area& area, std::size_t bytes) {
  bytes = whole_pages(bytes);
  const std::lock_guard lock(mutex_);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(area.offset), static_cast<off_t>(bytes));
  free_.emplace(bytes, area.offset);
  free_counts_.push_back(area.departures);
}

PeerSegment::PeerSegment(const SegmentAddress& address, int rank)
    : file_(open_peer_file(address.pid, address.file, "shared memory", rank)), departures_(file_) {
  try {
    struct stat status {};
    ensure(fstat(file_, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(SegmentHeader)),
           "File {} of process {} of rank {} is not a segment of Stretto.", address.file, address.pid, rank);
    header_ = std::make_unique<Mapping>(file_, 0, sizeof(SegmentHeader));
    ensure(reinterpret_cast<SegmentHeader*>(header_->data())->check == address.check,
           "File {} of process {} of rank {} is not the segment that it announced.", address.file, address.pid, rank);
  } catch (...) {
    close(file_);
    throw;
  }
}

PeerSegment::~PeerSegment() { close(file_); }

Bell& PeerSegment::bell() const { return reinterpret_cast<SegmentHeader*>(header_->data())->bell; }

Ports& PeerSegment::ports() const { return reinterpret_cast<SegmentHeader*>(header_->data())->ports; }

}  // namespace stretto
