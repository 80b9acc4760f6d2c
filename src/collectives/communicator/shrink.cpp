#include <algorithm>
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

// A rank that is lost while the survivors start is left behind, too. Job::exchange() has then failed on all the others:
// behind the last one, nothing in here waits for another rank or opens its memory.
Smaller start_smaller(Job::Survivors left, double patience, bool may_pin, const std::string& name) {
  while (true) {
    const std::shared_ptr<Job> job = std::move(left.job);
    try {
      return {world_of(job, may_pin, name), std::move(left.ranks)};
    } catch (const Error& error) {
      if (!error.is_of_another_rank()) throw;
      Job::Survivors fewer = job->shrink({}, patience);
      if (fewer.ranks.size() == left.ranks.size()) throw;
      for (int& rank : fewer.ranks) rank = left.ranks[rank];
      left = std::move(fewer);
    }
  }
}

}  // namespace

Communicator Communicator::shrink(const std::vector<int>& lost, std::vector<int>* survivors) const {
  group().check_process();
  RankContext& context = group().context();
  require(size() == context.job().size(),
          "Communicator '{}' has {} of the job's {} ranks; shrink one that has all, and split what it returns.", name(),
          size(), context.job().size());
  if (gpu_in_use()) {
    fail(ErrorCode::unavailable, "A job that uses GPUs cannot shrink: their links cannot lose a rank; start the job again.");
  }
  std::vector<int> named;
  for (const int one : lost) {
    require(one >= 0 && one < size() && one != rank(), "Rank {} cannot name rank {} of communicator '{}' of {} as lost.",
            rank(), one, name(), size());
    named.push_back(job_ranks()[one]);
    require(named.back() != 0, "A job cannot leave its rank 0 behind, through which the ranks meet; end it instead.");
  }
  const double timeout = context.network().timeout();
  Job::Survivors left = context.job().shrink(named, timeout);
  Smaller smaller = start_smaller(std::move(left), timeout, context.network().unpin(), name());
  smaller.world.set_timeout(timeout);
  if (survivors != nullptr) {
    survivors->clear();
    for (const int job_rank : smaller.ranks) {
      const auto place = std::find(job_ranks().begin(), job_ranks().end(), job_rank);
      survivors->push_back(static_cast<int>(place - job_ranks().begin()));
    }
  }
  return smaller.world;
}

}  // namespace stretto
