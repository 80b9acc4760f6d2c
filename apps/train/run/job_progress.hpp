#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace apps {

// How far a job has come, for what is said when it loses a rank. Rank 0 writes it, and the parent of its ranks reads it:
// made before the ranks are started, it lies in memory that they share.
class JobProgress {
 public:
  JobProgress();
  ~JobProgress();
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  // Training begins behind so many steps, each of which takes a data-parallel rank so many microbatches.
  void begin(std::int64_t steps, std::int64_t microbatches);
  void begin_step(std::int64_t step) { shared_->begun = step + 1; }
  // ", and computes 12 microbatches again": those of the steps that had begun behind a checkpoint of so many steps. Empty if
  // there were none. microbatches: of a step of the ranks that go on; 0: as many as before.
  std::string lost_behind(std::int64_t steps, std::int64_t microbatches = 0) const;

 private:
  struct Shared {
    std::atomic<std::int64_t> begun = 0, microbatches = 0;
  };
  Shared* shared_;
};

}  // namespace apps
