#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator/group.hpp"
#include "core/fail.hpp"
#include "device/gpu.hpp"
#include "stretto/communicator.hpp"
#include "transport/bootstrap/job.hpp"

namespace stretto {
namespace {

struct Smaller {
  Communicator world;
  std::vector<int> ranks;  // of its ranks: the rank in the larger job
};

// A rank that is lost while the survivors start is left behind, too. JobControl::exchange() has then failed on all the
// others: behind the last one, nothing in here waits for another rank or opens its memory.
Smaller start_smaller(JobControl::Survivors left, double patience, bool may_pin, const std::string& name) {
  while (true) {
    const std::shared_ptr<JobControl> job = std::move(left.job);
    try {
      return {world_of(job, may_pin, name), std::move(left.ranks)};
    } catch (const Error& error) {
      if (!error.is_of_another_rank()) throw;
      JobControl::Survivors fewer = job->shrink({}, patience);
      if (fewer.ranks.size() == left.ranks.size()) throw;
      for (int& rank : fewer.ranks) rank = left.ranks[rank];
      left = std::move(fewer);
    }
  }
}

}  // namespace

Communicator Job::shrink(const std::vector<int>& lost, std::vector<int>* survivors) const {
  RankContext& context = *context_;
  const int rank = context.job().rank(), size = context.job().size();
  if (gpu_in_use()) {
    fail(ErrorCode::unavailable, "A job that uses GPUs cannot shrink: their links cannot lose a rank; start the job again.");
  }
  for (const int one : lost) {
    require(one >= 0 && one < size && one != rank, "Rank {} cannot name rank {} of a job of {} as lost.", rank, one, size);
    require(one != 0, "A job cannot leave its rank 0 behind, through which the ranks meet; end it instead.");
  }
  const double timeout = context.network().timeout();
  Smaller smaller = start_smaller(context.job().shrink(lost, timeout), timeout, context.network().unpin(), context.name());
  smaller.world.job().set_timeout(timeout);
  if (survivors != nullptr) *survivors = std::move(smaller.ranks);
  return smaller.world;
}

}  // namespace stretto
