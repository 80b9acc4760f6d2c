// ShardedParameters: what lies at parameter servers.
#include <functional>
#include <utility>

#include "collectives/job/throw_together.hpp"
#include "layers/served/served_unit.hpp"
#include "stretto/device.hpp"
#include "stretto/layers/sharded_parameters.hpp"

namespace stretto {

void ShardedParameters::meet_workers() const {
  const Communicator& workers = mesh_.over(Axis::data);
  if (workers.size() > 1) workers.barrier(Stream::inline_()).wait();
}

// Returns when the servers have the values that all workers pull next.
void ShardedParameters::meet_at_servers_values() {
  const Communicator& workers = mesh_.over(Axis::data);
  const std::function<void()> read = std::exchange(read_at_servers_, nullptr);
  throw_together(workers, "have the servers read a checkpoint", [&] {
    if (read && workers.rank() == 0) read();
  });
}

// The pulls are begun together.
void ShardedParameters::settle() {
  traffic_->wait_for_values();
  std::vector<Work> pulls;
  for (ServedUnit* const unit : served_) pulls.push_back(unit->settle());
  for (const Work& pull : pulls) computation().wait(pull);
  meet_workers();  // before anybody pushes further
}

}  // namespace stretto
