#include "transport/shm/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/fail.hpp"
#include "device/memory/shared_file.hpp"
#include "stretto/settings.hpp"
#include "transport/shm/peer_file.hpp"

namespace stretto {
namespace {

std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

}  // namespace

void commit_memory(int file, std::size_t offset, std::size_t bytes) {
  commit_pages(file, offset, whole_pages(bytes), "lower STRETTO_RING_BYTES=" + setting("STRETTO_RING_BYTES"));
}

Mapping::Mapping(int file, std::size_t offset, std::size_t bytes, std::size_t committed) : bytes_(whole_pages(bytes)) {
  commit_memory(file, offset, committed);
  void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    const int error = errno;
    fail(ErrorCode::unavailable, "Cannot map {} bytes of shared memory: {}.", bytes_, errno_text(error));
  }
  data_ = static_cast<std::byte*>(data);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

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

std::atomic<std::uint32_t>& Departures::at(std::size_t offset) {
  const std::size_t page = offset / page_bytes * page_bytes;
  const std::lock_guard lock(mutex_);
  const Mapping& mapped = pages_.try_emplace(page, file_, page, page_bytes).first->second;
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(mapped.data() + (offset - page));
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
