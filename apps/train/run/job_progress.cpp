#include "apps/train/run/job_progress.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "apps/common/fail.hpp"

namespace apps {

JobProgress::JobProgress() {
  void* const page = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    fail(stretto::ErrorCode::unavailable, "Cannot map {} bytes for the job's progress: {}.", sizeof(Shared),
         strerror(errno));
  }
  shared_ = new (page) Shared;
}

JobProgress::~JobProgress() { munmap(shared_, sizeof(Shared)); }

void JobProgress::begin(std::int64_t steps, std::int64_t microbatches) {
  shared_->begun = steps;
  shared_->microbatches = microbatches;
}

std::string JobProgress::lost_behind(std::int64_t steps, std::int64_t microbatches) const {
  const std::int64_t lost = (shared_->begun - steps) * (microbatches > 0 ? microbatches : shared_->microbatches.load());
  return lost > 0 ? fmt::format(", and computes {} microbatch{} again", lost, lost == 1 ? "" : "es") : "";
}

}  // namespace apps
