#pragma once
#include <cstdint>
#include <mutex>

#include "stretto/export.hpp"

namespace stretto {

// What each read and write of a rank's scratch files passes (ShardedParameters::Options::Offload::gate), for tests and
// measurements of what goes on beside them. Threads that move blocks call it, also at the same time.
class STRETTO_API FileGate {
 public:
  FileGate() = default;
  virtual ~FileGate();
  FileGate(const FileGate&) = delete;
  FileGate& operator=(const FileGate&) = delete;

  // Called before `bytes` of a file are read or written from `offset` on, in whole blocks; they move when it has returned.
  virtual void pass(bool writes, std::int64_t offset, std::int64_t bytes) = 0;
};

// A disk of so many bytes a second, for reads and writes together: each passes when the time for its bytes, and for those
// before it, is over. Between moves nothing is saved up.
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
