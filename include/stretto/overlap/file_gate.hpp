#pragma once
#include <cstdint>
#include <mutex>

#include "stretto/export.hpp"

namespace stretto {

// Each read and write of a rank's scratch files passes a gate (ShardedParameters::Options::Offload::gate), with which tests
// and measurements hold the files up. The threads that move blocks call it, several of them at the same time.
class STRETTO_API FileGate {
 public:
  FileGate() = default;
  virtual ~FileGate();
  FileGate(const FileGate&) = delete;
  FileGate& operator=(const FileGate&) = delete;

  // The library calls it before it moves `bytes` from `offset` of a file on, in whole blocks; they move when it has
  // returned.
  virtual void pass(bool writes, std::int64_t offset, std::int64_t bytes) = 0;
};

// A disk that moves so many bytes a second, reads and writes together: each passes when the disk has had time for its bytes
// and all bytes before. Time in which nothing moves is lost.
class STRETTO_API TokenGate : public FileGate {
 public:
  // Throws Error(invalid_argument) for a rate of 0 or less.
  explicit TokenGate(double bytes_per_second);
  void pass(bool writes, std::int64_t offset, std::int64_t bytes) override;

 private:
  double bytes_per_second_;
  std::mutex mutex_;
  double free_at_ = 0;  // now_seconds()
};

}  // namespace stretto
